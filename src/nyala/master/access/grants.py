"""Operations on grants: grant, revoke. Pure.

Each change of them has the next version of the rules, in the same replicated batch, so that the version never
goes back when another master leads. Grants on tables that are gone are removed with the next change.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from nyala.common.errors import Forbidden, InvalidArgument, NotFound
from nyala.common.ids import TableId
from nyala.master.access.tokens import ACCESS_LOCK
from nyala.master.catalog.catalog import Catalog
from nyala.master.catalog.plan import AccessChanges, CatalogPlan, Scope
from nyala.master.catalog.records.tables import CatalogTable
from nyala.master.ddl.operation import CatalogOperation
from nyala.security.principal import AccessRole, check_name
from nyala.security.tables.grants import GRANTED_ROLES, TableRef, granted_role
from nyala.wire.proto import access_pb2 as pb
from nyala.wire.proto import catalog_pb2 as cat

MAX_GRANTS = 10_000


@dataclass(frozen=True, slots=True)
class GrantObject:
    """Object of a grant: a table, names that begin alike, or all.

    Attributes:
        table: name of a table or journal; empty: all whose names begin with `prefix`.
        prefix: beginning of names; empty: all.
        columns: names of columns of the table.
    """

    table: str
    prefix: str
    columns: tuple[str, ...]


def object_of(request: pb.GrantRequest | pb.RevokeGrantRequest) -> GrantObject:
    """Return the object of a request.

    Raises:
        InvalidArgument: it names none, or several, or columns without a table.
    """
    if [bool(request.table), bool(request.prefix), request.all].count(True) != 1:
        raise InvalidArgument(
            "name one object of the grant: a table or journal (--table), the beginning of names "
            "(--prefix), or all of them (--all)"
        )
    if request.columns and not request.table:
        raise InvalidArgument("columns belong to one table: name it (--table)")
    return GrantObject(request.table, request.prefix, tuple(dict.fromkeys(request.columns)))


def grant(request: pb.GrantRequest, granted_us: int, granted_by: str) -> CatalogOperation:
    """Return the operation that adds a grant; columns are added to those that are granted already.

    Its plan raises NotFound for an unknown table or column, and Forbidden if there are too many grants.

    Args:
        request: user, role and object.
        granted_us: time of the leader master, since the epoch.
        granted_by: name of the caller.

    Raises:
        InvalidArgument: no such role, an invalid name, or no object.
    """
    user, role, wanted = check_name(request.user), granted_role(request.role), object_of(request)
    if wanted.columns and role is not AccessRole.READER:
        raise InvalidArgument(
            f"columns can be granted for reading only, and the role is {role.name.lower()}; grant the role "
            "reader on the columns, and another role on the whole table if it is needed"
        )

    def plan(catalog: Catalog) -> CatalogPlan:
        table = _table(catalog, wanted)
        record = cat.GrantRecord(
            id=id_of(user, role, "" if table is None else table.id, wanted.prefix),
            user=user, role=role.name.lower(), table_id="" if table is None else table.id,
            prefix=wanted.prefix, columns=_ids(table, wanted.columns), granted_us=granted_us,
            granted_by=granted_by,
        )  # fmt: skip
        known = catalog.access.grants.get(record.id)
        if known is not None:
            if not known.columns or list(known.columns) == list(record.columns):
                return CatalogPlan()  # it is granted already
            if record.columns:
                both = sorted({*known.columns, *record.columns})
                del record.columns[:]
                record.columns.extend(both)
        elif len(catalog.access.grants) >= MAX_GRANTS:
            raise Forbidden(
                f"there are {MAX_GRANTS} grants, the most that there may be; grant on prefixes of names, or "
                "revoke some (nyala user grants)"
            )
        return _changed(catalog, (record,), ())

    return CatalogOperation("grant", lambda _: Scope(tables=(ACCESS_LOCK,)), plan)


def revoke(request: pb.RevokeGrantRequest) -> CatalogOperation:
    """Return the operation that removes the grants of a user on an object, or columns of them.

    Its plan raises NotFound if there are none.

    Raises:
        InvalidArgument: no such role, an invalid name, or no object.
    """
    user, wanted = check_name(request.user), object_of(request)
    roles = (granted_role(request.role),) if request.role else GRANTED_ROLES

    def plan(catalog: Catalog) -> CatalogPlan:
        table = _table(catalog, wanted)
        table_id = "" if table is None else table.id
        ids = [id_of(user, role, table_id, wanted.prefix) for role in roles]
        found = [g for i in ids if (g := catalog.access.grants.get(i)) is not None]
        if not found:
            raise NotFound(
                f"{user} has no such grant; `nyala user grants {user}` lists those that there are"
            )
        columns = set(_ids(table, wanted.columns))
        if not columns:
            return _changed(catalog, (), [g.id for g in found])
        if any(not g.columns for g in found):
            raise InvalidArgument(
                f"{user} has a grant on the whole table, of which no single column can be revoked; revoke "
                "it, and grant the columns that remain"
            )
        left, ended = [], []
        for old in found:
            record = cat.GrantRecord()
            record.CopyFrom(old)
            del record.columns[:]
            record.columns.extend(c for c in old.columns if c not in columns)
            if record.columns:
                left.append(record)
            else:
                ended.append(old.id)
        return _changed(catalog, left, ended)

    return CatalogOperation("revoke grant", lambda _: Scope(tables=(ACCESS_LOCK,)), plan)


def without_user(catalog: Catalog, user: str, changes: AccessChanges) -> AccessChanges:
    """Return changes of access that also end the grants of a user who is removed.

    Args:
        catalog: has the grants.
        user: whose account is removed.
        changes: of the account and its certificates.
    """
    ended = [g.id for g in catalog.access.grants.values() if g.user == user]
    if not ended:
        return changes
    mine = _changed(catalog, (), ended).access
    assert mine is not None
    return replace(changes, ungranted=mine.ungranted, rules=mine.rules)


def id_of(user: str, role: AccessRole, table_id: str, prefix: str) -> str:
    """Return the id of a grant: one for each user, role and object.

    Args:
        user: its holder.
        role: that is granted.
        table_id: table or journal; empty: a prefix, or all.
        prefix: beginning of names.
    """
    text = "\0".join((user, role.name, table_id, prefix))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def reference_of(table: CatalogTable) -> TableRef:
    """Return a table as grants know it."""
    schema = table.spec.schema
    names = {c.id: c.name for c in schema.columns}
    return TableRef(table.id, table.name, names, frozenset(schema.key_ids))


def _table(catalog: Catalog, wanted: GrantObject) -> CatalogTable | None:
    return catalog.require(wanted.table) if wanted.table else None


def _ids(table: CatalogTable | None, names: Iterable[str]) -> list[int]:
    """Return the ids of columns.

    Raises:
        NotFound: there is no such column.
    """
    if table is None:
        return []
    by_name = {name: number for number, name in reference_of(table).columns.items()}
    missing = [name for name in names if name not in by_name]
    if missing:
        raise NotFound(
            f"table {table.name!r} has no column {missing[0]!r}; its columns are: {', '.join(by_name)}"
        )
    return sorted(by_name[name] for name in names)


def _changed(
    catalog: Catalog, grants: Sequence[cat.GrantRecord], ended: Sequence[str]
) -> CatalogPlan:
    """Return the plan of a change, with the next version."""
    known = catalog.access.grants.values()
    gone = [g.id for g in known if g.table_id and _is_gone(catalog.table(TableId(g.table_id)))]
    version = cat.AccessRulesRecord(version=catalog.access.rules_version + 1)
    return CatalogPlan(
        access=AccessChanges(
            grants=tuple(grants), ungranted=tuple(dict.fromkeys((*ended, *gone))), rules=version
        )
    )


def _is_gone(table: CatalogTable | None) -> bool:
    return table is None or not (table.live or table.recallable)
