"""Keys of transactions: whether the key of a commit is free, taken, or refused. Rule I; pure.

The key of a job takes effect once. A stream has one row, its last epoch: that one and those before it are
done, the next one is free. A new query names the query that it replaces, and begins at epoch 0.
"""

from dataclasses import dataclass
from enum import Enum

from nyala.common.errors import InvalidArgument
from nyala.wire.proto import catalog_pb2 as cat
from nyala.wire.proto import transactions_pb2 as txn

MAX_NAME_BYTES = 256
"""Maximum bytes of the name of a job or a stream, and of the id of a query."""


class KeyState(Enum):
    """State of a key for one commit."""

    FREE = "free"
    TAKEN = "taken"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class KeyVerdict:
    """State of a key, and the reason if it is refused."""

    state: KeyState
    reason: str = ""


_FREE, _TAKEN = KeyVerdict(KeyState.FREE), KeyVerdict(KeyState.TAKEN)


def check(key: txn.TxnKey) -> None:
    """Check the form of a key.

    Raises:
        InvalidArgument: a name is empty, too long or unprintable, or a job has what only streams have.
    """
    for what, text in (("name", key.name), ("query", key.query), ("replaces", key.replaces)):
        size = len(text.encode())
        if size > MAX_NAME_BYTES or (text and not text.isprintable()):
            raise InvalidArgument(
                f"the {what} of the key, {text[:80]!r}, has {size} bytes; use printable text of 1 to "
                f"{MAX_NAME_BYTES} bytes"
            )
    if not key.name:
        raise InvalidArgument("the key has no name; name the job or the stream")
    if not key.query and (key.epoch or key.replaces):
        raise InvalidArgument(
            f"the key {key.name!r} has an epoch and names no query; give the id of the stream's query"
        )


def verdict(key: txn.TxnKey, taken: cat.KeyRecord | None) -> KeyVerdict:
    """Return the state of a key.

    Args:
        key: of the commit.
        taken: the row with its name; None: there is none.
    """
    known = None if taken is None else taken.key
    if not key.query:
        if known is None:
            return _FREE
        return _TAKEN if not known.query else _refused(f"{key.name!r} is the name of a stream")
    if known is not None and not known.query:
        return _refused(f"{key.name!r} is the id of a job")
    if known is None or known.query != key.query:
        return _of_new_query(key, "" if known is None else known.query)
    if key.epoch > known.epoch + 1:
        return _refused(
            f"the last epoch of {key.name!r} is {known.epoch}, and this one is {key.epoch}"
        )
    return _FREE if key.epoch == known.epoch + 1 else _TAKEN


def _of_new_query(key: txn.TxnKey, current: str) -> KeyVerdict:
    if key.replaces != current:
        named = f"replaces {key.replaces!r}" if key.replaces else "names none to replace"
        present = f"has the query {current!r}" if current else "has no query yet"
        return _refused(f"the stream {key.name!r} {present}, and the query {key.query!r} {named}")
    if key.epoch:
        return _refused(
            f"a new query of {key.name!r} begins at epoch 0, and this one is {key.epoch}"
        )
    return _FREE


def _refused(reason: str) -> KeyVerdict:
    return KeyVerdict(KeyState.REFUSED, reason)


def covers(taken: cat.KeyRecord | None, key: txn.TxnKey) -> bool:
    """Return whether a key row shows that a transaction with a key, or a later one in its place, committed.

    Args:
        taken: the row with the name of the key; None: there is none.
        key: of the transaction.
    """
    if taken is None:
        return False
    if not key.query:
        return not taken.key.query
    return bool(taken.key.query == key.query and taken.key.epoch >= key.epoch)
