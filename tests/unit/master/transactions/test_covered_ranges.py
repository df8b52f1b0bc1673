"""A transaction with a condition is committed only under the ranges by which the condition was staged."""

import asyncio

import pytest

from nyala.master.catalog.plan import CatalogPlan
from nyala.master.transactions.keys import ANYONE
from nyala.wire.proto import catalog_pb2 as cat
from nyala.wire.proto import transactions_pb2 as txn
from tests.unit.master.support.scripted_tablets import with_term

Kind = txn.TxnOutcome


def request_of(term, version):
    request = term.request()
    request.covered.add(table_id=term.catalog.named("t").id, ranges_version=version)
    return request


def change_ranges(term):
    record = cat.TableRecord()
    record.CopyFrom(term.catalog.named("t").record)
    record.spec.ranges_version += 1
    term.catalog.publish(term.catalog.draft(CatalogPlan(tables=(record,))))


def test_condition_under_the_present_ranges_is_committed():
    async def work(term):
        version = term.catalog.named("t").spec.ranges_version
        assert (
            await term.coordinator.commit(request_of(term, version), ANYONE)
        ).kind == Kind.COMMITTED

    with_term(work)


@pytest.mark.parametrize("known", [True, False])
def test_condition_under_other_ranges_is_denied_before_any_tablet_is_prepared(known):
    async def work(term):
        request = request_of(term, 7)
        if not known:
            request.covered[0].table_id = "ef" * 16
        done = await term.coordinator.commit(request, ANYONE)
        assert done.kind == Kind.DENIED
        assert "ranges of table" in done.reason
        assert "Prepare" not in term.methods_sent()
        assert not term.catalog.decisions.rows

    with_term(work)


def test_ranges_that_change_while_tablets_prepare_deny_the_commit():
    async def work(term):
        request = request_of(term, term.catalog.named("t").spec.ranges_version)
        first = next(iter(term.tablets.values()))
        first.held["Prepare"] = asyncio.Event()
        commit = asyncio.ensure_future(term.coordinator.commit(request, ANYONE))
        while "Prepare" not in term.methods_sent():
            await term.env.tasks.sleep_ms(1)
        change_ranges(term)
        first.held["Prepare"].set()
        assert (await commit).kind == Kind.DENIED
        assert not term.catalog.decisions.rows

    with_term(work)
