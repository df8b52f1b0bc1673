"""Tables and columns that a request uses, for methods for which a grant is enough. Pure.

The tables are named as in the request: by tablet, id or name. The columns are those whose values, order or
bounds the answer depends on.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from google.protobuf.message import DecodeError

from nyala.common.errors import InvalidArgument
from nyala.security.policy import LEAST_ROLES
from nyala.security.principal import AccessRole
from nyala.security.tables.grants import TableRef, TableUse
from nyala.wire import methods
from nyala.wire.proto import flight_pb2
from nyala.wire.proto import nyala_pb2 as pb
from nyala.wire.proto import reads_pb2 as reads


class How(Enum):
    """Kind of the name by which a request names a table."""

    TABLET = "tablet"
    ID = "id"
    NAME = "name"
    NEW = "new"
    """By the name that it is to have."""


@dataclass(frozen=True, slots=True)
class NamedTable:
    """A table as a request names it, and what the request does with it.

    Attributes:
        how: kind of the name.
        name: id of the tablet or table, or the table's name.
        columns: as `TableUse.columns`.
        keys: it also uses the key columns.
        role: least role, if it differs from that of the method.
    """

    how: How
    name: str
    columns: frozenset[int] | None = frozenset()
    keys: bool = False
    role: AccessRole | None = None

    def use(self, path: str, table: TableRef | None) -> TableUse:
        """Return what a call of a method does with the table."""
        columns = self.columns
        if columns is not None and self.keys and table is not None:
            columns |= table.keys
        return TableUse(LEAST_ROLES[path] if self.role is None else self.role, columns)


def tables_of(path: str, request: Any) -> list[NamedTable]:
    """Return the tables that a request uses.

    Args:
        path: of a method of `policy.BY_TABLE`.
        request: message of the method.

    Raises:
        InvalidArgument: the request names none, or it cannot be read.
    """
    found = list(_BY_METHOD[path](request))
    if not found and path != methods.DO_PUT.path:  # the first message of a DoPut is the schema
        raise InvalidArgument(f"the request names no table or tablet: {path}")
    return found


def columns_of(where: pb.Predicate) -> frozenset[int]:
    """Return the ids of the columns in a predicate; at least those that `wire/convert.py` reads from it."""
    found: set[int] = set()
    waiting = [where]
    while waiting:
        node = waiting.pop()
        waiting += node.children
        steps = (*node.left.steps, *node.right.steps)
        found |= {s.column_id for s in steps if s.kind == pb.ValueStep.COLUMN}
        if not node.HasField("left") and node.kind not in _WITHOUT_COLUMN:
            found.add(node.column_id)
    return frozenset(found)


_WITHOUT_COLUMN = frozenset(
    (pb.Predicate.AND, pb.Predicate.OR, pb.Predicate.NOT, pb.Predicate.TRUE, pb.Predicate.FALSE,
     pb.Predicate.UNKNOWN)
)  # fmt: skip


def _token(token: pb.ScanToken) -> Iterator[NamedTable]:
    read = None if token.all_columns else frozenset(token.column_ids)
    if token.count_only:
        read = frozenset()
    named = None if read is None else read | columns_of(token.where)
    keys = bool(
        token.ordered or token.changes or token.keys_ipc or token.resume_after or token.key_lower
        or token.key_upper
    )  # fmt: skip
    yield NamedTable(How.TABLET, token.tablet_id, named, keys)


def _ticket(ticket: flight_pb2.Ticket) -> Iterator[NamedTable]:
    try:
        token = pb.ScanToken.FromString(ticket.ticket)
    except DecodeError as err:
        raise InvalidArgument(
            f"the ticket is not a nyala.v1.ScanToken: {err}; make it with the client's scan API"
        ) from err
    return _token(token)


def header_of(data: Any) -> pb.WriteHeader | None:
    """Return the header of a batch in a DoPut; None: it is the schema.

    Raises:
        InvalidArgument: it cannot be read.
    """
    if not data.app_metadata:
        return None
    try:
        return pb.WriteHeader.FromString(bytes(data.app_metadata))
    except DecodeError as err:
        raise InvalidArgument(
            f"the metadata of a batch are not a nyala.v1.WriteHeader: {err}"
        ) from err


def _batch(data: Any) -> Iterator[NamedTable]:
    header = header_of(data)
    if header is None:
        return
    yield NamedTable(How.TABLET, header.tablet_id)
    if header.op == pb.DELETE_WHERE:  # its condition reads
        yield NamedTable(How.TABLET, header.tablet_id, None, role=AccessRole.READER)


def _split(request: reads.SplitKeyRangeRequest) -> Iterator[NamedTable]:
    for named in _token(request.token):
        yield NamedTable(named.how, named.name, named.columns, keys=True)


def _descriptor(request: flight_pb2.FlightDescriptor) -> Iterator[NamedTable]:
    for name in request.path[:1]:
        yield NamedTable(How.NAME, name)


def _definition(request: Any) -> Iterator[NamedTable]:
    if request.id:
        yield NamedTable(How.ID, request.id)
    if request.name or not request.id:  # both, whichever of them counts
        yield NamedTable(How.NAME, request.name)


def _altered(request: pb.AlterTableRequest) -> Iterator[NamedTable]:
    yield from _definition(request)
    for step in request.steps:
        if (
            step.rename_table
        ):  # as if it was created there: names belong to the owners of their prefix
            yield NamedTable(How.NEW, step.rename_table)


def _recalled(request: pb.RecallTableRequest) -> Iterator[NamedTable]:
    yield NamedTable(How.ID, request.id)
    if request.new_name:
        yield NamedTable(How.NEW, request.new_name)


def _tablet(request: Any) -> Iterator[NamedTable]:
    yield NamedTable(How.TABLET, request.tablet_id)


def _whole_tablet(request: Any) -> Iterator[NamedTable]:
    yield NamedTable(How.TABLET, request.tablet_id, None)


def _tablets(request: Any) -> Iterator[NamedTable]:
    return (NamedTable(How.TABLET, tablet) for tablet in request.tablet_ids)


_BY_METHOD: Mapping[str, Callable[[Any], Iterator[NamedTable]]] = {
    methods.CREATE_TABLE.path: lambda r: iter([NamedTable(How.NEW, r.table.name)]),
    methods.DROP_TABLE.path: _definition,
    methods.RECALL_TABLE.path: _recalled,
    methods.ALTER_TABLE.path: _altered,
    methods.DESCRIBE_TABLE.path: _definition,
    methods.TABLET_LOCATIONS.path: lambda r: iter([NamedTable(How.ID, r.table_id)]),
    methods.HOLD_HISTORY.path: _tablets,
    methods.GET.path: lambda r: (
        NamedTable(How.TABLET, part.tablet_id, frozenset(part.column_ids), keys=True)
        for part in r.parts
    ),
    methods.CHECKSUM.path: _whole_tablet,
    methods.SPLIT_KEY_RANGE.path: _split,
    methods.AWAIT_CHANGES.path: _tablets,
    methods.TXN_KEEP.path: _tablets,
    methods.TXN_DROP.path: _tablets,
    methods.TXN_COMMIT.path: lambda r: (
        NamedTable(How.TABLET, p.tablet_id) for p in r.participants
    ),
    methods.JOURNAL_STEP.path: _tablet,
    methods.JOURNAL_STEPS.path: _tablet,
    methods.JOURNAL_READ.path: _tablet,
    methods.JOURNAL_TAIL.path: _tablet,
    methods.GET_FLIGHT_INFO.path: _descriptor,
    methods.GET_SCHEMA.path: _descriptor,
    methods.DO_GET.path: _ticket,
    methods.DO_PUT.path: _batch,
}
METHODS = frozenset(_BY_METHOD)
"""Methods whose requests `tables_of` reads: those of `policy.BY_TABLE`."""
