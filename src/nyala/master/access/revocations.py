"""Revocation of certificates in the catalog. Pure."""

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
        return CatalogPlan(access=added(catalog, record))

    return CatalogOperation("revoke certificate", lambda _: Scope(tables=(ACCESS_LOCK,)), plan)


def added(catalog: Catalog, record: cat.RevocationRecord) -> AccessChanges:
    """Return the changes of the list of revocations with a new one, without those of ended certificates.

    Raises:
        Forbidden: there are too many.
    """
    known = catalog.access.revocations
    ended = tuple(r.id for r in known.values() if r.until_us < record.revoked_us)
    if len(known) - len(ended) >= MAX_REVOCATIONS and record.id not in known:
        raise Forbidden(
            f"{MAX_REVOCATIONS} revocations are the most that there may be; revoke by the names of "
            "holders, or use certificates that end earlier (--days)"
        )
    return AccessChanges(revocations=(record,), expired=tuple(e for e in ended if e != record.id))
