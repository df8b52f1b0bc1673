"""Grants: roles of users on tables and journals, on prefixes of their names, and on columns of a table. Pure.

They add to the role in a certificate, which holds for the whole cluster. The masters keep them in the
catalog; each server asks for them every two seconds (`admin/certificates.py`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from nyala.common.errors import Forbidden, InvalidArgument, Unavailable
from nyala.security.principal import AccessRole

GRANTED_ROLES = (AccessRole.READER, AccessRole.WRITER, AccessRole.OWNER)
NAMED_COLUMNS = 5
"""Most columns that an error names."""


@dataclass(frozen=True, slots=True)
class TableRef:
    """A table or journal, as grants know it.

    Attributes:
        id: its id; empty: it does not exist yet.
        name: its present name.
        columns: names of its columns by id; none: a journal.
        keys: ids of its key columns.
    """

    id: str
    name: str
    columns: Mapping[int, str] = field(default_factory=dict)
    keys: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True, order=True)
class Grant:
    """One grant.

    Attributes:
        id: of its row in the catalog.
        user: name in the certificate of the holder.
        role: reader, writer or owner.
        table_id: table or journal; empty: those whose names begin with `prefix`.
        prefix: beginning of names; empty with an empty `table_id`: all.
        columns: ids of the columns that may be read; none: all. Of the role reader on a table only.
    """

    id: str
    user: str
    role: AccessRole
    table_id: str = ""
    prefix: str = ""
    columns: tuple[int, ...] = ()

    def covers(self, table: TableRef) -> bool:
        """Return whether the grant holds for a table."""
        return table.id == self.table_id if self.table_id else table.name.startswith(self.prefix)


@dataclass(frozen=True, slots=True)
class TableUse:
    """Use of a table by a call.

    Attributes:
        role: least role for it.
        columns: ids of the columns whose values it reads or filters by; None: all.
    """

    role: AccessRole
    columns: frozenset[int] | None = frozenset()


class Grants:
    """The grants of a cluster, as one process knows them. They are replaced as a whole.

    Attributes:
        version: of the list; increases with each change.
        fresh: the masters were asked lately; until then nothing is granted.
    """

    def __init__(self) -> None:
        self.version = -1
        self.fresh = False
        self._by_user: dict[str, tuple[Grant, ...]] = {}

    def replace(self, version: int, grants: Iterable[Grant]) -> None:
        """Replace the list; an older version than the present one is ignored."""
        if version < self.version:
            return
        by_user: dict[str, tuple[Grant, ...]] = {}
        for grant in sorted(grants):
            by_user[grant.user] = (*by_user.get(grant.user, ()), grant)
        self.version, self._by_user = version, by_user

    def __len__(self) -> int:
        return sum(map(len, self._by_user.values()))

    def of(self, user: str) -> tuple[Grant, ...]:
        """Return the grants of a user."""
        return self._by_user.get(user, ())

    def is_visible(self, user: str, table: TableRef) -> bool:
        """Return whether a user has any grant on a table.

        Raises:
            Unavailable: as `require`.
        """
        self._check_fresh()
        return any(g.covers(table) for g in self.of(user))

    def require(
        self, user: str, use: TableUse, table: TableRef | None, *, seen: bool = False
    ) -> None:
        """Check that a user may use a table.

        Args:
            user: name of the caller.
            use: what the call does.
            table: the table; None: there is none, which is not distinguished from one that is not granted.
            seen: the caller may see every table.

        Raises:
            Forbidden: it is not granted.
            Unavailable: this server has not heard from the masters lately, so that it does not know.
        """
        self._check_fresh()
        covering = [g for g in self.of(user) if table is not None and g.covers(table)]
        strong = [g for g in covering if g.role >= use.role]
        if table is None or not strong:
            what = _described(table, seen or bool(covering))
            raise Forbidden(
                f"{user} needs a grant of the role {use.role.name.lower()} on {what}; "
                "an owner of it or an administrator can grant it (nyala user grant)"
            )
        if any(not g.columns for g in strong):
            return
        missing = missing_columns(use, table, strong)
        if missing:
            raise Forbidden(
                f"{user} has no grant on these columns of table {table.name!r}: {names_of(table, missing)}; "
                "name the columns to read, without these, also in conditions and orders, or have them "
                "granted (nyala user grant --columns)"
            )

    def _check_fresh(self) -> None:
        if not self.fresh:
            raise Unavailable(
                "this server does not know the grants of users at present, since no leader master has "
                "answered it lately; retry, and see nyala cluster ksck"
            )


def missing_columns(use: TableUse, table: TableRef, grants: Iterable[Grant]) -> frozenset[int]:
    """Return the columns of a use that no column grant names.

    Args:
        use: of the table.
        table: has the columns.
        grants: those that cover the table and have columns.
    """
    wanted = frozenset(table.columns) if use.columns is None else use.columns
    return wanted.difference(*(g.columns for g in grants))


def _described(table: TableRef | None, seen: bool) -> str:
    """Return what a refusal calls a table: whether one exists that the caller does not see is not told."""
    if table is not None and (seen or not table.id):
        return f"{table.name!r}" if table.id else f"names that begin as {table.name!r} does"
    return "this table, if there is one"


def names_of(table: TableRef, columns: Iterable[int]) -> str:
    """Return the names of columns for an error: the first few, in order of their ids."""
    found = [table.columns.get(c, f"#{c}") for c in sorted(columns)]
    more = f" and {len(found) - NAMED_COLUMNS} more" if len(found) > NAMED_COLUMNS else ""
    return ", ".join(found[:NAMED_COLUMNS]) + more


def granted_role(text: str) -> AccessRole:
    """Return a role that can be granted on tables, by its name.

    Raises:
        InvalidArgument: no such role; the message lists them.
    """
    for role in GRANTED_ROLES:
        if text.lower() == role.name.lower():
            return role
    names = ", ".join(r.name.lower() for r in GRANTED_ROLES)
    raise InvalidArgument(f"{text[:80]!r} cannot be granted on tables; use one of: {names}")
