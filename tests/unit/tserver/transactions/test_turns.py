"""Transactions that overlap without a pause: ordinary writes and reads of the latest rows have their turn."""

from functools import partial
from itertools import pairwise

from nyala.tablet.files.transaction_ops import BUSY, TransactionOutcome
from nyala.wire import methods
from nyala.wire.proto import transactions_pb2 as tb
from tests.sim.transactions.staged_table import done
from tests.unit.tserver.support.staged_group import T1, T2, StagedGroup, with_group

TURN_MS = 100


async def next_one(group: StagedGroup, transaction: bytes) -> int:
    """Prepare a transaction as the coordinator does, which tries again as long as the tablet is busy."""
    group.decisions.trying.add(transaction)
    while True:
        found = await group.prepare(group.tablet, transaction, group.decisions.attempt())
        if found.outcome != TransactionOutcome.REFUSED:
            return done(found)
        await group.core.env.tasks.sleep_ms(10)


def is_busy(result: tb.TxnTabletResult) -> bool:
    return result.outcome == TransactionOutcome.REFUSED and result.errors[0].code == BUSY


def test_write_look_up_and_scan_go_on_while_transactions_overlap():
    """Each begins before the one before it has ended, so there is no moment in which none is prepared."""

    async def work(group: StagedGroup) -> None:
        await group.on(group.write, 1, 1)
        ids = [n.to_bytes(16, "big") for n in range(1000, 1020)]
        for transaction in ids:
            await group.on(group.stage_in, group.tablet, transaction, {100: 1})
        loop, began = group.cluster.loop, 0.0
        p, waiting = await group.on(next_one, group, ids[0]), []
        for number, (before, after) in enumerate(pairwise(ids)):
            if number == 3:
                began = loop.time()
                look = group.replica().start_read(None, 5_000)
                waiting = [
                    group.begin(group.write, 2, 2, timeout_ms=5_000),
                    group.begin(group.scan, group.tablet),
                ]
            held = group.begin(next_one, group, after)
            await group.pause(20)
            at = group.decisions.decide(before, [p])
            await group.on(group.resolve, group.tablet, before, at)
            await group.cluster.until(partial(bool, held), "the next one is prepared")
            p = held[0]
            if number > 3 and look.done() and all(waiting):
                break
        assert loop.time() - began < 0.5, "each waits for its turn, and for what is prepared then"
        assert look.done()
        assert all(waiting)
        assert not waiting[0][0].HasField("error")

    with_group(work)


def test_tablet_prepares_nothing_more_until_a_read_of_the_latest_rows_was_answered():
    async def work(group: StagedGroup) -> None:
        p = await group.on(group.prepared, T1, {1: 1})
        await group.on(group.stage_in, group.tablet, T2, {2: 2})
        look = group.replica().start_read(None, 5_000)
        await group.pause(TURN_MS + 50)
        attempt = group.decisions.attempt()
        assert not look.done()
        assert is_busy(await group.on(group.prepare, group.tablet, T2, attempt))
        at = group.decisions.decide(T1, [p])
        await group.on(group.resolve, group.tablet, T1, at)
        await group.cluster.until(look.done, "the read went on")
        group.decisions.trying.add(T2)
        done(await group.on(group.prepare, group.tablet, T2, attempt))

    with_group(work)


def test_tablet_prepares_nothing_more_until_a_write_that_waits_too_long_was_proposed():
    async def work(group: StagedGroup) -> None:
        p = await group.on(group.prepared, T1, {1: 1})
        await group.on(group.stage_in, group.tablet, T2, {2: 2})
        written = group.begin(group.write, 3, 3)
        await group.pause(TURN_MS // 2)
        early = b"e" * 16
        await group.on(group.prepared, early, {4: 4})
        await group.on(group.unprepare, group.tablet, early, group.decisions.attempt())
        await group.pause(TURN_MS)
        attempt = group.decisions.attempt()
        assert is_busy(await group.on(group.prepare, group.tablet, T2, attempt))
        check = tb.TxnCheckRequest(tablet_ids=[group.tablet])
        assert is_busy(await group.on(group.order, group.tablet, methods.TXN_CHECK, check))
        again = await group.on(group.prepare, group.tablet, T1, group.decisions.attempt())
        assert done(again) == p, "it is prepared already, and holds up nothing more"
        assert not written
        at = group.decisions.decide(T1, [p])
        await group.on(group.resolve, group.tablet, T1, at)
        await group.cluster.until(lambda: written, "the write went on")
        assert written[0].timestamp > at
        done(await group.on(group.prepare, group.tablet, T2, attempt))

    with_group(work)
