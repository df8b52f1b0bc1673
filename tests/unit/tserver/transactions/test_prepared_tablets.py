"""A prepared tablet: which writes and reads wait, at leaders and followers, and what lets them go on."""

import pytest

from nyala.common.errors import CasFailed, NotLeader, Throttled, TimedOut, Unavailable
from nyala.common.hybrid_time import from_micros
from nyala.tablet.files.transaction_ops import TransactionOutcome
from nyala.wire import convert, methods, status
from nyala.wire.proto import nyala_pb2 as pb
from nyala.wire.proto import reads_pb2
from nyala.wire.proto import transactions_pb2 as tb
from tests.sim.transactions.script import as_message
from tests.sim.transactions.staged_table import done
from tests.unit.tserver.support.staged_group import T1, T2, StagedGroup, with_group


def test_rows_are_visible_from_the_commit_time_on():
    async def work(group: StagedGroup) -> None:
        p = await group.on(group.prepared, T1, {1: 7})
        at = group.decisions.decide(T1, [p], ahead=10)
        result = await group.on(group.resolve, group.tablet, T1, at)
        assert (result.outcome, result.time) == (TransactionOutcome.ENDED, at)
        assert await group.on(group.scan, group.tablet, at=at) == (at, {1: 7})
        assert await group.on(group.scan, group.tablet, at=at - 1) == (at - 1, {})
        again = await group.on(group.resolve, group.tablet, T1, at)
        assert (again.outcome, again.time) == (TransactionOutcome.ENDED, at)

    with_group(work)


def test_ordinary_write_waits_for_the_resolve_and_is_stamped_above_the_commit_time():
    async def work(group: StagedGroup) -> None:
        p = await group.on(group.prepared, T1, {1: 7})
        written = group.begin(group.write, 1, 8)
        await group.pause(1_000)
        assert not written
        at = group.decisions.decide(T1, [p], ahead=from_micros(500_000))
        await group.on(group.resolve, group.tablet, T1, at)
        await group.cluster.until(lambda: written, "the write went on")
        assert written[0].timestamp > at
        assert (await group.on(group.scan, group.tablet))[1] == {1: 8}

    with_group(work)


def test_ordinary_write_is_throttled_at_its_deadline_and_was_not_proposed():
    async def work(group: StagedGroup) -> None:
        await group.on(group.prepared, T1, {1: 7})
        last = group.replica().status().last
        result = await group.on(group.write, 1, 8, timeout_ms=1_000)
        error = status.from_proto(result.error)
        assert isinstance(error, Throttled), error
        assert "a transaction is prepared in this tablet" in error.message
        assert group.replica().status().last == last

    with_group(work)


def test_schema_change_waits_for_a_prepared_transaction():
    async def work(group: StagedGroup) -> None:
        p = await group.on(group.prepared, T1, {1: 7})
        process = group.process_of()
        tablets = process.server.tablets
        hosted = tablets.get(group.tablet)
        schema = convert.schema_to_proto(hosted.tablet.info.schema)
        schema.version += 1
        order = pb.AlterTabletRequest(
            tablet_id=group.tablet, table_name="t", schema=schema, fence=group.fence(group.tablet)
        )
        altered: list[int] = []

        async def alter() -> None:
            altered.append(await tablets.alter(order, 20_000))

        process.run(alter)
        await group.pause(1_000)
        assert not altered
        at = group.decisions.decide(T1, [p])
        await group.on(group.resolve, group.tablet, T1, at)
        await group.cluster.until(lambda: altered, "the change went on")

    with_group(work)


def test_new_leader_lets_no_write_pass_a_prepared_transaction():
    async def work(group: StagedGroup) -> None:
        p = await group.on(group.prepared, T1, {1: 7})
        await group.on(group.transfer)
        written = group.begin(group.write, 1, 8)
        await group.pause(1_500)
        assert not written
        at = group.decisions.decide(T1, [p])
        await group.cluster.until(lambda: written, "the new leader asked for the outcome")
        assert written[0].timestamp > at
        assert await group.on(group.scan, group.tablet, at=at) == (at, {1: 7})

    with_group(work)


def test_read_is_answered_up_to_the_prepare_time_and_waits_above_it():
    async def work(group: StagedGroup) -> None:
        await group.on(group.write, 5, 5)
        p = await group.on(group.prepared, T1, {1: 7})
        assert await group.on(group.scan, group.tablet, at=p) == (p, {5: 5})
        later = group.begin(group.scan, group.tablet, at=p + 1)
        latest = group.begin(group.scan, group.tablet)
        await group.pause(1_000)
        assert (later, latest) == ([], [])
        at = group.decisions.decide(T1, [p], ahead=from_micros(20_000))
        await group.on(group.resolve, group.tablet, T1, at)
        await group.cluster.until(lambda: later and latest, "the reads went on")
        assert later == [(p + 1, {5: 5})], "below the commit time"
        read_at, rows = latest[0]
        assert rows == {5: 5, 1: 7}
        assert read_at > at, "at the applied stamp"

    with_group(work)


def test_read_below_a_known_commit_time_does_not_wait_for_its_turn():
    async def work(group: StagedGroup) -> None:
        p = await group.on(group.prepared, T1, {1: 1})
        await group.on(group.prepared, T2, {2: 2})
        at = group.decisions.decide(T1, [p], ahead=from_micros(2_000_000))
        resolved = group.begin(group.resolve, group.tablet, T1, at, timeout_ms=4_000)
        await group.pause(300)
        assert not resolved, "the other one may commit before"
        read_at, rows = await group.on(group.scan, group.tablet, at=p)
        assert (read_at, rows) == (p, {})

    with_group(work)


@pytest.mark.row("A21")
def test_commit_time_that_waits_for_its_turn_is_reported_for_a_rebuild_of_the_catalog():
    async def work(group: StagedGroup) -> None:
        p = await group.on(group.prepared, T1, {1: 1})
        await group.on(group.prepared, T2, {2: 2})
        at = group.decisions.decide(T1, [p], ahead=from_micros(2_000_000))
        group.begin(group.resolve, group.tablet, T1, at, timeout_ms=4_000)
        await group.pause(300)
        tablets = group.process_of().server.tablets
        (found,) = tablets.statuses([group.tablet], definitions=True)
        known = {t.transaction: (t.ended, t.decided) for t in found.definition.transactions}
        assert known == {T1: (0, at), T2: (0, 0)}

    with_group(work)


def test_read_that_waits_too_long_names_the_cause():
    async def work(group: StagedGroup) -> None:
        p = await group.on(group.prepared, T1, {1: 7})
        with pytest.raises(TimedOut, match="a transaction is prepared"):
            await group.on(group.scan, group.tablet, at=p + 1, timeout_ms=500)

    with_group(work)


def test_look_up_and_checksum_wait_too():
    async def work(group: StagedGroup) -> None:
        p = await group.on(group.prepared, T1, {1: 7})
        call = group.core.env.rpc.call
        request = reads_pb2.ChecksumRequest(tablet_id=group.tablet, timeout_ms=5_000)
        address = group.process_of().address
        summed = group.begin(call, address, methods.CHECKSUM, request, timeout_ms=6_000)
        point = group.replica().start_read(None, 5_000)
        await group.pause(20)
        assert group.replica().running_member().lease.holds()
        assert not group.replica().read_now(), "the transaction may be committed already"
        await group.pause(500)
        assert not summed
        assert not point.done()
        at = group.decisions.decide(T1, [p])
        await group.on(group.resolve, group.tablet, T1, at)
        await group.cluster.until(lambda: summed and point.done(), "they went on")
        assert summed[0].rows == 1
        assert point.result() > at

    with_group(work)


def test_followers_close_no_time_above_the_prepare_time():
    async def work(group: StagedGroup) -> None:
        await group.on(group.write, 5, 5)
        p = await group.on(group.prepared, T1, {1: 7})
        await group.pause(2_000)
        for follower in group.followers():
            closed = group.replica(follower).status().closed
            assert closed <= p, "a reader there would miss the rows of the transaction"
            stale = {"mode": pb.STALE, "max_age_ms": 60_000}
            read_at, rows = await group.on(group.scan, group.tablet, follower.address, **stale)
            assert (read_at <= p, rows) == (True, {5: 5})
        assert not group.replica().status().quiesced, "it would not ask for the outcome"
        at = group.decisions.decide(T1, [p])
        await group.on(group.resolve, group.tablet, T1, at)
        await group.pause(1_000)
        for follower in group.followers():
            assert group.replica(follower).status().closed > at

    with_group(work)


def test_wait_for_changes_ends_with_the_resolve():
    async def work(group: StagedGroup) -> None:
        p = await group.on(group.prepared, T1, {1: 7})
        await group.on(group.stage_in, group.tablet, T2, {2: 2})
        request = reads_pb2.AwaitChangesRequest(tablet_ids=[group.tablet], after=p, wait_ms=5_000)
        call, address = group.core.env.rpc.call, group.process_of().address
        waited = group.begin(call, address, methods.AWAIT_CHANGES, request, timeout_ms=6_000)
        await group.pause(1_000)
        assert not waited, "a reader would find nothing above the prepare time"
        at = group.decisions.decide(T1, [p])
        await group.on(group.resolve, group.tablet, T1, at)
        await group.cluster.until(lambda: waited, "the wait ended")
        assert waited[0].changed

    with_group(work)


def test_write_that_waits_fails_when_its_replica_ends():
    async def work(group: StagedGroup) -> None:
        await group.on(group.prepared, T1, {1: 7})
        written = group.begin(group.write, 1, 8, timeout_ms=4_000)
        resolved = group.begin(group.resolve, group.tablet, T2, 5)
        await group.pause(500)
        group.replica().fail(Unavailable("ended by the test"))
        await group.cluster.until(lambda: written and resolved, "the requests ended", 2)
        assert written[0].error.code == NotLeader.code

    with_group(work)


def test_resolve_is_stamped_above_a_commit_time_ahead_of_the_clock():
    async def work(group: StagedGroup) -> None:
        p = await group.on(group.prepared, T1, {1: 7})
        at = group.decisions.decide(T1, [p], ahead=from_micros(3_000_000))
        result = await group.on(group.resolve, group.tablet, T1, at)
        assert result.outcome == TransactionOutcome.ENDED
        assert group.replica().node.last_stamp > at

    with_group(work)


def test_resolves_are_applied_in_the_order_of_commit_times():
    async def work(group: StagedGroup) -> None:
        group.decisions.silent = True
        p1 = await group.on(group.prepared, T1, {1: 1})
        p2 = await group.on(group.prepared, T2, {1: 2})
        first = group.decisions.decide(T2, [p2], ahead=5)
        second = group.decisions.decide(T1, [p1, p2], ahead=5)
        late = group.begin(group.resolve, group.tablet, T1, second)
        await group.pause(200)
        assert not late
        assert (await group.on(group.resolve, group.tablet, T2, first)).time == first
        await group.cluster.until(lambda: late, "the later one went on")
        assert late[0].time == second
        assert (await group.on(group.scan, group.tablet, at=first))[1] == {1: 2}
        assert (await group.on(group.scan, group.tablet, at=second))[1] == {1: 1}

    with_group(work)


@pytest.mark.parametrize("staged", [False, True])
def test_resolve_of_what_is_not_prepared_is_answered_gone_and_frees_the_stage(staged: bool):
    """An unsafe recovery has lost the PREPARE: the rows cannot take effect at their commit time any more."""

    async def work(group: StagedGroup) -> None:
        if staged:
            await group.on(group.stage_in, group.tablet, T1, {1: 1})
        result = await group.on(group.resolve, group.tablet, T1, 1 << 40)
        assert result.outcome == TransactionOutcome.GONE
        assert not await group.on(group.stages, group.tablet)
        again = await group.on(group.resolve, group.tablet, T1, 1 << 40)
        assert again.outcome == TransactionOutcome.GONE
        assert (await group.on(group.scan, group.tablet))[1] == {}

    with_group(work)


def test_resolve_at_a_leader_that_was_replaced_loses_nothing():
    """It may not know a transaction that its successor has prepared: it can commit no DROP."""

    async def work(group: StagedGroup) -> None:
        old = group.process_of()
        others = [p.name for p in group.cluster.servers if p is not old]
        group.cluster.network.partition([old.name], others)

        def replaced() -> bool:
            found = group.cluster.leader_of(group.tablet)
            return found is not None and found is not old

        fence = group.fence(group.tablet)
        await group.cluster.until(replaced, "another server leads")
        p = await group.on(group.prepared, T1, {1: 7})
        at = group.decisions.decide(T1, [p], ahead=10)
        asked = tb.TxnResolveRequest(
            transaction=T1, at=at, tablet_ids=[group.tablet], timeout_ms=500, fence=fence
        )
        call = group.core.env.rpc.call
        answered = await group.on(call, old.address, methods.TXN_RESOLVE, asked, timeout_ms=2_000)
        (answer,) = answered.results
        assert answer.HasField("error"), answer
        group.cluster.network.heal()
        await group.on(group.resolve, group.tablet, T1, at)
        assert (await group.on(group.scan, group.tablet))[1] == {1: 7}

    with_group(work)


def test_prepare_and_unprepare_obey_their_attempts():
    async def work(group: StagedGroup) -> None:
        group.decisions.trying.add(T1)
        tablet, old, new = group.tablet, group.decisions.attempt(), group.decisions.attempt()
        await group.on(group.stage_in, tablet, T1, {1: 1})
        p = done(await group.on(group.prepare, tablet, T1, new))
        last = group.replica().status().last
        assert done(await group.on(group.prepare, tablet, T1, new)) == p
        assert group.replica().status().last == last, "it is not replicated again"
        older = await group.on(group.prepare, tablet, T1, old)
        assert older.outcome == TransactionOutcome.OLDER
        kept = await group.on(group.unprepare, tablet, T1, old)
        assert kept.outcome == TransactionOutcome.PREPARED
        done(await group.on(group.unprepare, tablet, T1, new))
        assert not group.replica().transactions.prepared
        assert not (await group.on(group.write, 9, 9)).HasField("error")

    with_group(work)


def test_orders_of_an_earlier_master_are_refused():
    async def work(group: StagedGroup) -> None:
        fence = group.fence(group.tablet)
        fence.term -= 1
        attempt = as_message(group.decisions.attempt())
        ids = [group.tablet]
        for method, request in (
            (methods.TXN_PREPARE, tb.TxnPrepareRequest(transaction=T1, attempt=attempt, fence=fence)),
            (methods.TXN_UNPREPARE, tb.TxnUnprepareRequest(transaction=T1, bound=attempt, fence=fence)),
            (methods.TXN_RESOLVE, tb.TxnResolveRequest(transaction=T1, at=5, tablet_ids=ids, fence=fence)),
        ):  # fmt: skip
            with pytest.raises(CasFailed, match="led in term"):
                await group.on(group.order, group.tablet, method, request)

    with_group(work)


def test_results_are_in_order_and_an_error_belongs_to_one_tablet():
    async def work(group: StagedGroup) -> None:
        process = group.process_of()
        led = [t for t in group.tablets if group.cluster.leader_of(t) is process]
        other = [t for t in group.tablets if t not in led]
        wanted = [*other, "f" * 32, *led]
        request = tb.TxnCheckRequest(tablet_ids=wanted)
        call = group.core.env.rpc.call
        response = await group.on(
            call, process.address, methods.TXN_CHECK, request, timeout_ms=5_000
        )
        assert [r.tablet_id for r in response.results] == wanted
        for result in response.results:
            if result.tablet_id in led:
                assert result.outcome == TransactionOutcome.DONE, result
            elif result.tablet_id in other:
                assert result.error.code == NotLeader.code
            else:
                assert result.error.code == "UNAVAILABLE"

    with_group(work, tablets=6)


def test_leader_asks_for_the_outcome_and_carries_it_out():
    async def work(group: StagedGroup) -> None:
        p = await group.on(group.prepared, T1, {1: 1})
        await group.on(group.prepared, T2, {2: 2})
        await group.pause(1_000)
        assert min(group.decisions.asked[t] for t in (T1, T2)) >= 2, "every 250 ms"
        assert len(group.replica().transactions.prepared) == 2, "their attempts are under way"
        group.decisions.trying.discard(T2)  # its coordinator ended before the decision
        at = group.decisions.decide(T1, [p])
        await group.cluster.until(
            lambda: not group.replica().transactions.prepared, "both have their outcome"
        )
        assert await group.on(group.scan, group.tablet, at=at) == (at, {1: 1})
        (stage,) = await group.on(group.stages, group.tablet)
        assert (stage.transaction, stage.prepared) == (T2, 0), "the stage is kept"

    with_group(work)


def test_tablet_that_was_dropped_is_not_unprepared():
    async def work(group: StagedGroup) -> None:
        await group.on(group.prepared, T1, {1: 1})
        group.decisions.dropped.add(group.tablet)
        group.decisions.trying.discard(T1)
        await group.pause(1_500)
        assert T1 in group.replica().transactions.prepared

    with_group(work)


def test_metrics_show_what_is_staged_and_for_how_long_it_is_prepared():
    async def work(group: StagedGroup) -> None:
        await group.on(group.stage_in, group.tablet, T2, {2: 2})
        await group.on(group.prepared, T1, {1: 1})
        await group.pause(2_000)
        registry = group.process_of().server.metrics.registry
        labels = {"table": "t", "tablet": group.tablet}

        def value(name: str) -> float:
            return float(registry.get_sample_value(f"nyala_tablet_{name}", labels))

        assert value("staged_transactions") == 2
        assert value("staged_bytes") > 0
        assert value("prepared_count") == 1
        assert 1.9 < value("prepared_seconds") < 4

    with_group(work)


def test_restarted_server_holds_what_is_prepared():
    async def work(group: StagedGroup) -> None:
        p = await group.on(group.prepared, T1, {1: 1})
        await group.on(group.stage_in, group.tablet, T2, {2: 2})
        group.decisions.silent = True
        for process in group.cluster.tservers:
            process.kill()
        for process in group.cluster.tservers:
            await process.restart()
        await group.cluster.until(lambda: group.cluster.leader_of(group.tablet), "it is led again")
        written = group.begin(group.write, 1, 8)
        await group.pause(1_500)
        assert not written
        assert await group.on(group.scan, group.tablet, at=p) == (p, {})
        at = group.decisions.decide(T1, [p])
        group.decisions.silent = False
        await group.cluster.until(lambda: written, "the outcome was asked for")
        assert await group.on(group.scan, group.tablet, at=at) == (at, {1: 1})

    with_group(work)
