"""Operation that revokes certificates. Pure."""

from nyala.common.errors import Forbidden
from nyala.master.access.tokens import ACCESS_LOCK
from nyala.master.catalog.catalog import Catalog
from nyala.master.catalog.plan import AccessChanges, CatalogPlan, Scope
from nyala.master.ddl.operation import CatalogOperation
from nyala.wire.proto import catalog_pb2 as cat

MAX_REVOCATIONS = 10_000


def revoke(record: cat.RevocationRecord) -> CatalogOperation:
    """Return the operation that adds a revocation, and removes those of certificates that have ended.

    Its plan raises Forbidden if there are too many.
    """

    def plan(catalog: Catalog) -> CatalogPlan:
        known = catalog.access.revocations
        ended = tuple(r.id for r in known.values() if r.until_us < record.revoked_us)
        if len(known) - len(ended) >= MAX_REVOCATIONS and record.id not in known:
            raise Forbidden(
                f"{MAX_REVOCATIONS} revocations are the most that there may be; revoke by the names of "
                "holders, or use certificates that end earlier (--days)"
            )
        ended = tuple(e for e in ended if e != record.id)
        return CatalogPlan(access=AccessChanges(revocations=(record,), expired=ended))

    return CatalogOperation("revoke certificate", lambda _: Scope(tables=(ACCESS_LOCK,)), plan)
