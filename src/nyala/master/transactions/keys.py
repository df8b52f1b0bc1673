"""Keys of transactions: whether the key of a commit is free, taken, or refused. Rule I; pure.

The key of a job takes effect once. A stream has one row, its last epoch: that one and those before it are
done, the next one is free. A new query names the query that it replaces, and begins at epoch 0. The epochs of
one query are written to one table: one that is dropped and created again lacks the rows of earlier epochs.

A name belongs to the user whose transaction took it first, so that a transaction of another user is not
answered with an outcome of which it has no part.
"""

from dataclasses import dataclass, replace
from enum import Enum

from nyala.common.errors import Forbidden, InvalidArgument
from nyala.security.principal import AccessRole, Principal
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


@dataclass(frozen=True, slots=True)
class KeyUser:
    """Caller that names a key.

    Attributes:
        name: of the user; empty: a server, or any caller of a cluster without certificates.
        every_key: may use the keys of other users.
    """

    name: str
    every_key: bool

    def may_use(self, taken: cat.KeyRecord | None) -> bool:
        """Return whether the caller may use the name of a key.

        Args:
            taken: the row with the name; None: there is none.
        """
        return self.every_key or taken is None or taken.owner in ("", self.name)

    def owner(self, taken: cat.KeyRecord | None) -> str:
        """Return who owns a name that the caller takes: the owner stays, and a name without one gets one.

        Args:
            taken: as for `may_use`.
        """
        return self.name if taken is None or not taken.owner else taken.owner


ANYONE = KeyUser("", every_key=True)
"""The callers of a cluster without certificates."""


def user_of(caller: Principal | None) -> KeyUser:
    """Return the caller of a request about a key; administrators and servers may use every key.

    Args:
        caller: None: the cluster has no certificates.
    """
    if caller is None:
        return ANYONE
    name = "" if caller.role is AccessRole.SERVER else caller.name
    return KeyUser(name, caller.role >= AccessRole.ADMIN)


@dataclass(frozen=True, slots=True)
class KeyUse:
    """Key of a commit, the user that asks for it, and the id of its transaction."""

    key: txn.TxnKey
    user: KeyUser
    transaction: bytes

    def won(self, taken: cat.KeyRecord | None) -> bool:
        """Return whether the row of the key is of this transaction, whoever owns the key by now."""
        return taken is not None and bool(taken.transaction == self.transaction)

    def of_table(self, taken: cat.KeyRecord | None) -> "KeyUse":
        """Return the use as the row keeps it: an epoch without a table leaves that of its query as it is.

        Args:
            taken: the row with the name; None: there is none.
        """
        key = self.key
        if not key.query or key.table or taken is None or taken.key.query != key.query:
            return self
        named = txn.TxnKey()
        named.CopyFrom(key)
        named.table = taken.key.table
        return replace(self, key=named)


def check(key: txn.TxnKey) -> None:
    """Check the form of a key.

    Raises:
        InvalidArgument: a name is empty, too long or unprintable, or a job has what only streams have.
    """
    parts = (
        ("name", key.name),
        ("query", key.query),
        ("replaces", key.replaces),
        ("table", key.table),
    )
    for what, text in parts:
        size = len(text.encode())
        if size > MAX_NAME_BYTES or (text and not text.isprintable()):
            raise InvalidArgument(
                f"the {what} of the key, {text[:80]!r}, has {size} bytes; use printable text of 1 to "
                f"{MAX_NAME_BYTES} bytes"
            )
    if not key.name:
        raise InvalidArgument("the key has no name; name the job or the stream")
    if not key.query and (key.epoch or key.replaces or key.table):
        raise InvalidArgument(
            f"the key {key.name!r} has an epoch or a table and names no query; give the id of the stream's "
            "query"
        )


def require_use(name: str, taken: cat.KeyRecord | None, user: KeyUser) -> None:
    """Check that a user may use the name of a key.

    Args:
        name: of a job or a stream.
        taken: the row with the name; None: there is none.
        user: the caller.

    Raises:
        Forbidden: it belongs to another user, whom the message does not name.
    """
    if not user.may_use(taken):
        raise Forbidden(_of_another(name))


def verdict(use: KeyUse, taken: cat.KeyRecord | None) -> KeyVerdict:
    """Return the state of a key.

    Args:
        use: key and user of the commit.
        taken: the row with its name; None: there is none.
    """
    key = use.key
    if use.won(taken):
        return _TAKEN
    if not use.user.may_use(taken):
        return _refused(_of_another(key.name))
    known = None if taken is None else taken.key
    if not key.query:
        if known is None:
            return _FREE
        return _TAKEN if not known.query else _refused(f"{key.name!r} is the name of a stream")
    if known is not None and not known.query:
        return _refused(f"{key.name!r} is the id of a job")
    if known is None or known.query != key.query:
        return _of_new_query(key, "" if known is None else known.query)
    if not same_stream(key, known):
        return _refused(
            f"the query {key.query!r} of {key.name!r} has written epoch {known.epoch} to the table with the "
            f"id {known.table}, and this epoch, {key.epoch}, is for the table with the id {key.table}: the "
            "table was dropped and created again, or the query writes another one. Write the stream from "
            "epoch 0 on, by a new query that replaces this one"
        )
    if key.epoch > known.epoch + 1:
        return _refused(
            f"the last epoch of {key.name!r} is {known.epoch}, and this one is {key.epoch}"
        )
    return _FREE if key.epoch == known.epoch + 1 else _TAKEN


def same_stream(key: txn.TxnKey, known: txn.TxnKey) -> bool:
    """Return whether two keys with one name are of one query and one table.

    Keys of earlier versions name no table; they are of any.
    """
    one_table = not key.table or not known.table or key.table == known.table
    return bool(key.query == known.query and one_table)


def _of_another(name: str) -> str:
    return (
        f"the key {name!r} belongs to a job or stream of another user; use another name, or ask an "
        "administrator for this one (nyala txn owner)"
    )


def _of_new_query(key: txn.TxnKey, current: str) -> KeyVerdict:
    if key.replaces != current:
        named = f"replaces {key.replaces!r}" if key.replaces else "names none to replace"
        present = f"has the query {current!r}" if current else "has no query yet"
        return _refused(f"the stream {key.name!r} {present}, and the query {key.query!r} {named}")
    if key.epoch and not current:
        return _refused(
            f"the stream {key.name!r} has no epoch in this catalog, so it begins at epoch 0, and this one is "
            f"{key.epoch}. The last epochs of streams are lost when a catalog is rebuilt (nyala master "
            "unsafe_rebuild): write the stream by a new query, from epoch 0 on"
        )
    if key.epoch:
        return _refused(
            f"a new query of {key.name!r} begins at epoch 0, and this one is {key.epoch}"
        )
    return _FREE


def _refused(reason: str) -> KeyVerdict:
    return KeyVerdict(KeyState.REFUSED, reason)


def covers(taken: cat.KeyRecord | None, use: KeyUse) -> bool:
    """Return whether a key row shows that a transaction with a key, or a later one in its place, committed.

    Args:
        taken: the row with the name of the key; None: there is none.
        use: key and user of the transaction; the row of another user shows nothing of it.
    """
    key = use.key
    if use.won(taken):
        return True
    if taken is None or not use.user.may_use(taken):
        return False
    if not key.query:
        return not taken.key.query
    return same_stream(key, taken.key) and bool(taken.key.epoch >= key.epoch)
