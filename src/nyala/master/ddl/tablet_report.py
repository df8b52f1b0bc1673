"""Reports of tablet servers: from report and catalog to plan. Pure.

Older reports never overwrite newer ones (S0.81); a tablet without a catalog record is never touched (S0.46).
The orders that follow from a report are derived in `reconcile.py`.
"""

from collections.abc import Sequence

from nyala.common.ids import OpId, ServerUuid, TabletId
from nyala.master.catalog.catalog import Catalog
from nyala.master.catalog.plan import CatalogPlan, Scope
from nyala.master.catalog.records.tables import CatalogTablet, TabletState
from nyala.master.ddl.operation import CatalogOperation
from nyala.master.tservers import GONE
from nyala.wire.proto import catalog_pb2 as cat
from nyala.wire.proto import nyala_pb2 as pb


def operations(
    catalog: Catalog, server: ServerUuid, reports: Sequence[pb.TabletReport], batch: int
) -> list[CatalogOperation]:
    """Return the operations that record a report, `batch` tablets each; none if nothing changed.

    Args:
        catalog: the leader's catalog.
        server: that sent the report.
        reports: its tablets.
        batch: most tablets in one operation.
    """
    news = [r for r in reports if _updated(catalog, server, r) is not None]
    return [_operation(server, news[first : first + batch]) for first in range(0, len(news), batch)]


def _operation(server: ServerUuid, reports: Sequence[pb.TabletReport]) -> CatalogOperation:
    tablets = tuple(TabletId(r.tablet_id) for r in reports)
    return CatalogOperation(
        what="process tablet report",
        scope=lambda _: Scope(tablets=tablets),
        plan=lambda catalog: plan(catalog, server, reports),
    )


def plan(catalog: Catalog, server: ServerUuid, reports: Sequence[pb.TabletReport]) -> CatalogPlan:
    """Return the new records of the tablets that a report changes.

    Args:
        catalog: the leader's catalog.
        server: that sent the report.
        reports: some of its tablets.
    """
    updated = (_updated(catalog, server, report) for report in reports)
    return CatalogPlan(tablets=tuple(record for record in updated if record is not None))


def _updated(
    catalog: Catalog, server: ServerUuid, report: pb.TabletReport
) -> cat.TabletRecord | None:
    tablet = catalog.tablet(TabletId(report.tablet_id))
    if tablet is None or not tablet.live:
        return None
    record = tablet.edit()
    # A replica that is still being opened may turn out never to have been created.
    showed = report.state not in (*GONE, "BOOTSTRAPPING")
    if showed and server not in record.reported_by:
        record.reported_by.append(server)
    if is_newer(report.consensus, tablet):
        record.consensus.CopyFrom(merged(report.consensus, tablet.consensus))
    if tablet.state is TabletState.CREATING and record.consensus.leader:
        record.state = TabletState.RUNNING.value
    if tablet.dropped and not record.dropped_at:
        record.dropped_at = report.retired_at
    return None if record == tablet.record else record


def is_newer(reported: pb.ConsensusState, tablet: CatalogTablet) -> bool:
    """Return whether a reported consensus state is newer than the catalog's.

    A configuration is newer by its op id. Of one configuration a later term is newer, and in one term
    the report that names the leader: the first report may come from a voter that does not know the leader.
    """
    known = tablet.consensus
    config = OpId(reported.config_term, reported.config_index)
    if not reported.members or config < tablet.config_id:
        return False
    if config > tablet.config_id:
        return True
    if reported.term != known.term:
        return reported.term > known.term and bool(reported.leader)
    return bool(reported.leader) and not known.leader


def merged(reported: pb.ConsensusState, known: pb.ConsensusState) -> pb.ConsensusState:
    """Return a newer consensus state, merged so that terms never decrease and keep their leader."""
    kept = pb.ConsensusState()
    kept.CopyFrom(reported)
    if known.term > reported.term:
        kept.term, kept.leader = known.term, known.leader
    return kept
