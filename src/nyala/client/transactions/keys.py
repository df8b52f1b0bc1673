"""Keys of transactions, the options of `Client.transaction`, and tokens for other processes."""

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypedDict

from nyala.client.checks import check_int, check_text
from nyala.common.errors import InvalidArgument
from nyala.wire.proto import transactions_pb2 as txn

DEFAULT_TIMEOUT_S = 3_600
MAX_TIMEOUT_S = 7 * 86_400
MAX_KEY_BYTES = 256
ID_BYTES = 16


@dataclass(frozen=True, slots=True)
class StreamKey:
    """Key of an epoch of a stream, which takes effect once and in order.

    Attributes:
        name: name of the stream.
        query: id of the query that writes it.
        epoch: number of the epoch, from 0.
        replaces: query that a new one takes the stream over from; empty: the stream is new.
        table: id of the table that the query writes, which stays the same; empty: it is not checked.
    """

    name: str
    query: str
    epoch: int
    replaces: str = ""
    table: str = ""


@dataclass(frozen=True, slots=True)
class CommittedKey:
    """The last commit under a key.

    Attributes:
        name: id of the job, or name of the stream.
        at: commit time, a hybrid time.
        transaction: id of the transaction, in hexadecimal digits.
        query: of a stream: id of the query that wrote it; empty: a job.
        epoch: of a stream: number of its last epoch.
        table: of a stream: id of the table of its last epoch; empty: the key did not name it.
    """

    name: str
    at: int
    transaction: str
    query: str = ""
    epoch: int = 0
    table: str = ""


Key = str | StreamKey
"""Key of a transaction: the id of a job, or an epoch of a stream."""


class TransactionOptions(TypedDict, total=False):
    """TransactionSettings of `Client.transaction`."""

    timeout_s: float
    key: Key | None


@dataclass(frozen=True, slots=True)
class TransactionSettings:
    """TransactionSettings of a transaction, checked."""

    timeout_s: float = DEFAULT_TIMEOUT_S
    key: txn.TxnKey | None = None


@dataclass(frozen=True, slots=True)
class TransactionToken:
    """Names a transaction of another process, which can stage parts for it. Can be pickled.

    Attributes:
        id: of the transaction, in hexadecimal digits.
        masters: addresses of the masters of its cluster, as `connect` takes them.
    """

    id: str
    masters: str


def options_of(given: Mapping[str, Any]) -> TransactionSettings:
    """Return the options of a transaction.

    Raises:
        InvalidArgument: an unknown option, or a wrong value.
    """
    known = tuple(TransactionOptions.__annotations__)
    for name in given:
        if name not in known:
            similar = difflib.get_close_matches(name, known, 1)
            hint = f" did you mean {similar[0]!r}?" if similar else ""
            raise InvalidArgument(
                f"a transaction has no option {name!r};{hint} the options are: {', '.join(known)}"
            )
    timeout_s = given.get("timeout_s", DEFAULT_TIMEOUT_S)
    fits = isinstance(timeout_s, int | float) and not isinstance(timeout_s, bool)
    if not fits or not math.isfinite(timeout_s) or not 0 < timeout_s <= MAX_TIMEOUT_S:
        raise InvalidArgument(
            f"timeout_s={timeout_s!r} is not a number of seconds above 0 and up to {MAX_TIMEOUT_S}; give one"
        )
    key = given.get("key")
    return TransactionSettings(timeout_s, None if key is None else _key(key))


def _key(key: Any) -> txn.TxnKey:
    if isinstance(key, StreamKey):
        for what, text in (("name", key.name), ("query", key.query)):
            _check("StreamKey." + what, text)
        check_text("StreamKey.replaces", key.replaces)
        check_text("StreamKey.table", key.table)
        check_int("StreamKey.epoch", key.epoch)
        return txn.TxnKey(
            name=key.name, query=key.query, epoch=key.epoch, replaces=key.replaces, table=key.table
        )
    if not isinstance(key, str):
        raise InvalidArgument(
            f"key={key!r} is a {type(key).__name__}; pass the id of a job as a str, or a nyala.StreamKey"
        )
    _check("key", key)
    return txn.TxnKey(name=key)


def _check(what: str, text: Any) -> None:
    check_text(what, text)
    if not 1 <= len(text.encode()) <= MAX_KEY_BYTES or not text.isprintable():
        raise InvalidArgument(
            f"{what}={text[:80]!r}: use printable text of 1 to {MAX_KEY_BYTES} bytes"
        )


def id_of(token: Any) -> bytes:
    """Return the id in a token.

    Raises:
        InvalidArgument: it is no token.
    """
    if not isinstance(token, TransactionToken):
        raise InvalidArgument(
            f"{token!r} is a {type(token).__name__}; pass what token() of a transaction returns"
        )
    try:
        found = bytes.fromhex(token.id)
    except ValueError:
        found = b""
    if len(found) != ID_BYTES:
        raise InvalidArgument(f"the token names no transaction: {token.id[:80]!r}")
    return found
