"""A catalog with one tablet, for tests of orders."""

from nyala.common.ids import TabletId
from nyala.master.catalog.catalog import Catalog
from nyala.master.catalog.plan import CatalogPlan
from nyala.wire.proto import catalog_pb2 as cat
from nyala.wire.proto import nyala_pb2 as pb
from tests.unit.master.support.master_helpers import report

T = TabletId("t0")
FENCE = pb.Fence(catalog_incarnation="i", term=4)


def known(state=cat.TABLET_CREATING, **consensus):
    """Return a catalog with the tablet T of one table."""
    made = Catalog()
    record = cat.TabletRecord(
        id=T, table_id="table", state=state, consensus=report(T, **consensus).consensus
    )
    table = cat.TableRecord(id="table", state=cat.TABLE_RUNNING, spec=pb.TableSpec(name="metrics"))
    made.publish(made.draft(CatalogPlan((record,), (table,))))
    return made
