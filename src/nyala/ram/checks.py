"""Checks of requests and configurations of an ensemble, before an operation begins."""

from nyala.common import addresses
from nyala.common.errors import InvalidArgument, TooLarge
from nyala.ram.ids import LAST_HASH
from nyala.ram.server_list import ROLES
from nyala.wire.proto import ram_pb2 as pb

MAX_SPAN = 1024
"""Most tablets with which a table is created."""
MAX_NAME = 256
"""Most characters of a table's name."""
MAX_ADDRESS = 256
MAX_TABLE_BYTES = 900 << 10
"""Size of a table's record above which it is not split, in bytes: about 30,000 tablets; an entry: 1 MiB."""


def check_name(name: str) -> None:
    """Refuse what cannot be the name of a table.

    Raises:
        InvalidArgument: it is empty, too long, or has characters that cannot be printed.
    """
    if not 0 < len(name) <= MAX_NAME or not name.isprintable():
        raise InvalidArgument(
            f"{name[:40]!r} is no name of a table; give 1 to {MAX_NAME} printable characters"
        )


def check_operation(operation: pb.OperationId) -> None:
    """Refuse an operation id that is too long to be kept with its table."""
    if len(operation.client) > MAX_NAME:
        raise InvalidArgument(
            f"operation.client has more than {MAX_NAME} characters; send a shorter one"
        )


def check_span(span: int) -> None:
    """Refuse a number of tablets that no table is created with."""
    if not 1 <= span <= MAX_SPAN:
        raise InvalidArgument(f"server_span={span}: give 1 to {MAX_SPAN}")


def check_split(split_hash: int) -> None:
    """Refuse a hash at which no tablet can be split."""
    if not 0 < split_hash <= LAST_HASH:
        raise InvalidArgument(f"split_hash={split_hash}: give a hash from 1 to {LAST_HASH}")


def check_size(table: pb.Table) -> None:
    """Refuse to split a table whose record is nearly as large as an entry of a log may be."""
    size = table.ByteSize()
    if size > MAX_TABLE_BYTES:
        raise TooLarge(
            f"table {table.name!r} has {len(table.tablets)} tablets, and its record {size} bytes of "
            f"{MAX_TABLE_BYTES}; nothing took effect. Create another table for some of the data"
        )


def check_ensemble(name: str, address: str) -> None:
    """Refuse what cannot be the name of an ensemble, or the address of its coordinator."""
    if not 0 < len(name) <= MAX_NAME or not name.isprintable():
        raise InvalidArgument(
            f"{name[:40]!r} is no name of an ensemble; give 1 to {MAX_NAME} printable characters"
        )
    check_address(address)


def check_enlist(request: pb.EnlistRequest) -> None:
    """Refuse a server without roles or address."""
    if not request.roles or not set(request.roles) <= set(ROLES):
        raise InvalidArgument(f"roles={list(request.roles)!r}: give {' or '.join(ROLES)}, or both")
    check_address(request.address)


def check_address(address: str) -> None:
    """Refuse an address at which nobody can be reached."""
    shown = address[:40]
    if len(address) > MAX_ADDRESS:
        raise InvalidArgument(f"address={shown!r}...: give at most {MAX_ADDRESS} characters")
    if not addresses.parse(address)[1]:
        raise InvalidArgument(f"address={shown!r}: nobody is at port 0; give host:port")
