"""Grants: granting, revoking, and the poll with which servers learn what is in force about access."""

from collections.abc import Iterable

from nyala.common.errors import Forbidden
from nyala.common.ids import TableId, TabletId
from nyala.env.rpc import Handlers
from nyala.master.access import grants
from nyala.master.catalog.catalog import Catalog
from nyala.master.catalog.records.tables import CatalogTable
from nyala.master.services.access import revocations_since
from nyala.master.services.authorities import AuthoritiesService
from nyala.master.services.tables import MasterContext
from nyala.security.identity import CALLER
from nyala.security.principal import AccessRole, Principal
from nyala.security.tables.grants import TableRef, granted_role
from nyala.wire import methods
from nyala.wire.proto import access_pb2 as pb
from nyala.wire.proto import catalog_pb2 as cat
from nyala.wire.tls.requests import grant_of
from nyala.wire.tls.tables_of import How


class GrantService:
    """Handlers of `AccessService` for grants. On the loop only.

    Args:
        context: context of this master.
        authorities: takes the reports of servers about the authorities that they trust.
    """

    def __init__(self, context: MasterContext, authorities: AuthoritiesService) -> None:
        self._context = context
        self._authorities = authorities

    def handlers(self) -> Handlers:
        """Return the methods that this service answers."""
        return {
            methods.GRANT: self.grant,
            methods.REVOKE_GRANT: self.revoke_grant,
            methods.LIST_GRANTS: self.list_grants,
            methods.ACCESS_RULES: self.access_rules,
        }

    def find(self, how: How, name: str) -> TableRef | None:
        """Return a table or journal that a request names; see `wire.tls.requests.Find`.

        Raises:
            NotLeader, Unavailable: this master does not lead: retry.
        """
        if how is How.NEW:
            return TableRef("", name)
        catalog = self._context.require_leading().require().catalog
        table: CatalogTable | None
        if how is How.NAME:
            table = catalog.named(name)
        elif how is How.ID:
            table = catalog.table(TableId(name))
        else:
            tablet = catalog.tablet(TabletId(name))
            table = None if tablet is None else catalog.table(tablet.table_id)
        return None if table is None else grants.reference_of(table)

    async def grant(self, request: pb.GrantRequest) -> pb.GrantResponse:
        """Grant a role on a table, a prefix or all tables; durable on return. Idempotent.

        Raises:
            InvalidArgument, NotFound: no such role, table or column, or no object.
            Forbidden: the caller is no administrator and no owner of the table; or there are too many.
        """
        caller = _caller()
        now_us = self._context.env.clock.wall_us()
        wanted = grants.grant(request, now_us, caller.name)
        term = await self._context.confirmed()
        _require_owner(caller, term.catalog, request.table)
        await self._context.require_leading().run(wanted, term)
        catalog = term.catalog
        table = catalog.named(request.table)
        table_id = "" if table is None else table.id
        role = granted_role(request.role)
        record = catalog.access.grants[grants.id_of(request.user, role, table_id, request.prefix)]
        return pb.GrantResponse(grant=_view(catalog, record))

    async def revoke_grant(self, request: pb.RevokeGrantRequest) -> pb.RevokeGrantResponse:
        """Revoke the grants of a user on an object; durable on return.

        Raises:
            InvalidArgument, NotFound: as `grant`; or the user has no such grant.
            Forbidden: the caller is no administrator, and no owner of the table.
        """
        caller, wanted = _caller(), grants.revoke(request)
        term = await self._context.confirmed()
        _require_owner(caller, term.catalog, request.table)
        await self._context.require_leading().run(wanted, term)
        catalog = term.catalog
        table = catalog.named(request.table)
        left = [
            record
            for record in _sorted(catalog.access.grants.values())
            if record.user == request.user and _holds_for(record, table)
        ]
        return pb.RevokeGrantResponse(left=[_view(catalog, r) for r in left])

    async def list_grants(self, request: pb.ListGrantsRequest) -> pb.ListGrantsResponse:
        """Return grants: to administrators all, to others their own and those on tables that they own."""
        caller = _caller()
        catalog = (await self._context.confirmed()).catalog
        found = [
            record
            for record in _sorted(catalog.access.grants.values())
            if request.user in ("", record.user)
            and (
                record.user == caller.name
                or _owns(caller, catalog, catalog.table(TableId(record.table_id)))
            )
        ]
        return pb.ListGrantsResponse(grants=[_view(catalog, record) for record in found])

    async def access_rules(self, request: pb.AccessRulesRequest) -> pb.AccessRulesResponse:
        """Return the grants, if their version differs from the caller's, and so the revoked certificates.

        With a report of the caller also the authorities to trust.

        Raises:
            Forbidden: the report names another server than the certificate of the caller.
        """
        term = await self._context.confirmed()
        catalog = term.catalog
        answer = pb.AccessRulesResponse(version=catalog.access.rules_version)
        if request.none or request.version != answer.version:
            answer.changed = True
            answer.grants.extend(catalog.access.grants.values())
        revoked = revocations_since(catalog, request.revoked)
        if revoked.digest != request.revoked:
            answer.revocations.CopyFrom(revoked)
        if request.HasField("authorities"):
            answer.authorities.CopyFrom(await self._authorities.report(term, request.authorities))
        return answer


def _caller() -> Principal:
    """Return the caller.

    Raises:
        Forbidden: the cluster has no certificates, so that it does not know its users.
    """
    caller = CALLER.get()
    if caller is None:
        raise Forbidden(
            "this cluster has no certificates, so that it does not know its users: everyone on this machine "
            "may do everything; a cluster of `nyala init`, or `nyala up` without --insecure, has grants"
        )
    return caller.principal


def _owns(caller: Principal, catalog: Catalog, table: CatalogTable | None) -> bool:
    """Return whether a caller may grant on a table; None: on prefixes and on all."""
    if caller.role >= AccessRole.ADMIN or (table is not None and caller.role >= AccessRole.OWNER):
        return True
    if table is None:
        return False
    reference = grants.reference_of(table)
    own = (grant_of(g) for g in catalog.access.grants.values() if g.user == caller.name)
    return any(g.role is AccessRole.OWNER and g.covers(reference) for g in own)


def _require_owner(caller: Principal, catalog: Catalog, name: str) -> None:
    """Check that a caller may grant on a table, or, without a name, on prefixes and on all.

    Raises:
        Forbidden: it may not.
    """
    if _owns(caller, catalog, catalog.named(name)):
        return
    raise Forbidden(
        f"{caller.name} may grant only on tables and journals that {caller.name} owns"
        + (
            f", and owns none of the name {name!r}"
            if name
            else "; prefixes and all are for administrators"
        )
    )


def _holds_for(record: cat.GrantRecord, table: CatalogTable | None) -> bool:
    return table is not None and grant_of(record).covers(grants.reference_of(table))


def _sorted(records: Iterable[cat.GrantRecord]) -> list[cat.GrantRecord]:
    return sorted(records, key=lambda g: (g.user, g.prefix, g.table_id, g.role))


def _view(catalog: Catalog, record: cat.GrantRecord) -> pb.GrantView:
    table = catalog.table(TableId(record.table_id)) if record.table_id else None
    names = {} if table is None else grants.reference_of(table).columns
    return pb.GrantView(
        user=record.user, role=record.role, table_id=record.table_id,
        table="" if table is None or not table.live else table.name, prefix=record.prefix,
        columns=[names.get(c, f"#{c}") for c in record.columns], granted_us=record.granted_us,
        granted_by=record.granted_by,
    )  # fmt: skip
