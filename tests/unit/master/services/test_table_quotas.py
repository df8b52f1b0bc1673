"""Sizes of tables with a quota at the leader master: known once each tablet's leader has reported its own."""

import pytest

from nyala.common.errors import InvalidArgument
from nyala.machines.tables import QUOTA_OPTION, quota_of
from nyala.master.catalog.catalog import Catalog
from nyala.master.catalog.plan import CatalogPlan
from nyala.master.catalog.records.tables import CatalogTable
from nyala.master.table_quotas import TableQuotas
from nyala.wire.proto import nyala_pb2 as pb
from tests.unit.master.support.ddl_operations import with_table


def with_quota(catalog: Catalog, text: str) -> CatalogTable:
    record = catalog.require("t").edit()
    record.spec.options[QUOTA_OPTION] = text
    catalog.publish(catalog.draft(CatalogPlan(tables=(record,))))
    return catalog.require("t")


def sizes(table: CatalogTable, catalog: Catalog, *counts: int) -> list[pb.TabletSize]:
    tablets = catalog.tablets_of(table.id)
    return [
        pb.TabletSize(tablet_id=t.id, table_id=table.id, bytes=size)
        for t, size in zip(tablets, counts, strict=False)
    ]


def test_table_is_over_when_the_sum_of_its_tablets_reaches_the_quota():
    catalog = with_table()
    table = with_quota(catalog, "100")
    assert len(catalog.tablets_of(table.id)) == 2
    quotas = TableQuotas(catalog)
    first, second = sizes(table, catalog, 60, 39)
    assert quotas.exchange([first]) == [], "one size is not known"
    assert quotas.bytes_of(table) is None
    under = pb.TableQuota(table_id=table.id, bytes=99)
    assert quotas.exchange([second]) == [under]
    second.bytes = 40
    assert quotas.exchange([second]) == [pb.TableQuota(table_id=table.id, bytes=100, over=True)]
    assert quotas.over() == [table]
    assert quotas.size_of(table.id) == 100
    first.bytes = 59
    assert quotas.exchange([first, second]) == [under]
    assert quotas.over() == []


def test_table_without_a_quota_or_that_was_dropped_has_no_state():
    catalog = with_table()
    table, quotas = catalog.require("t"), TableQuotas(catalog)
    assert quotas.exchange(sizes(table, catalog, 1, 1)) == []
    assert quotas.exchange([pb.TabletSize(tablet_id="x", table_id="y", bytes=1)]) == []
    assert quotas.over() == []


@pytest.mark.parametrize("text", ["", "0", "-1", "1.5", "1e9", "١", "9" * 19, "many"])
def test_wrong_quotas_are_refused(text):
    with pytest.raises(InvalidArgument, match="whole number of bytes"):
        quota_of({QUOTA_OPTION: text})
    assert quota_of({QUOTA_OPTION: "9" * 18}) == 10**18 - 1
    assert quota_of({}) == 0
