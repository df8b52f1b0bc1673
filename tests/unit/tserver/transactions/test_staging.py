"""STAGE as a write of a client session: what is refused, what it costs, and when it ends."""

import msgspec
import pytest

from nyala.common.errors import CasFailed, NotFound, NyalaError, Throttled, TooLarge
from nyala.tablet.files.transaction_ops import TransactionOutcome
from nyala.wire import status
from nyala.wire.proto import nyala_pb2 as pb
from tests.sim.systems.cluster import OPTIONS
from tests.unit.tserver.support.staged_group import T1, T2, StagedGroup, with_group


def refusal(result: pb.WriteResult) -> NyalaError:
    assert result.HasField("error"), result
    return status.from_proto(result.error)


def test_staged_batch_is_durable_and_not_visible():
    async def work(group: StagedGroup) -> None:
        before = await group.on(group.write, 1, 1)
        result = await group.on(group.stage_in, group.tablet, T1, {2: 2})
        assert result.timestamp > before.timestamp
        assert (len(result.row_errors), result.duplicate) == (0, False)
        (stage,) = await group.on(group.stages, group.tablet)
        assert (stage.transaction, stage.batches, stage.kept) == (T1, 1, result.timestamp)
        assert stage.bytes > 0
        assert (await group.on(group.scan, group.tablet))[1] == {1: 1}

    with_group(work)


def test_batch_that_is_staged_again_has_the_first_result():
    async def work(group: StagedGroup) -> None:
        stage = pb.StageHeader(transaction=T1, part="p", number=0)
        header = group.header(group.tablet, T1, 1, stage=stage)
        first = await group.on(group.put, header, {1: 1})
        again = await group.on(group.put, header, {1: 1})
        assert again.duplicate
        assert (again.timestamp, again.crc) == (first.timestamp, first.crc)
        (stage,) = await group.on(group.stages, group.tablet)
        assert stage.batches == 1

    with_group(work)


def test_rows_that_could_fail_are_named():
    async def work(group: StagedGroup) -> None:
        stage = pb.StageHeader(transaction=T1, part="p", number=0)
        header = group.header(group.tablet, T1, 1, op=pb.INSERT, stage=stage)
        result = await group.on(group.put, header, {1: 1})
        assert result.row_errors, result
        assert not await group.on(group.stages, group.tablet)

    with_group(work)


@pytest.mark.parametrize(
    "wrong", [{"transaction": b"short"}, {"part": ""}, {"number": 1 << 31}, {"part": "p" * 200}]
)
def test_stage_outside_the_limits_is_refused_before_it_is_proposed(wrong):
    async def work(group: StagedGroup) -> None:
        fields = {"transaction": T1, "part": "p", "number": 0} | wrong
        header = group.header(group.tablet, T1, 1, stage=pb.StageHeader(**fields))
        error = refusal(await group.on(group.put, header, {1: 1}))
        assert "that no tablet can apply" in str(error)

    with_group(work)


def test_ended_and_prepared_transactions_take_no_batches():
    async def work(group: StagedGroup) -> None:
        tablet = group.tablet
        p = await group.on(group.prepared, T1, {1: 1})
        error = refusal(await group.on(group.stage_in, tablet, T1, {2: 2}))
        assert isinstance(error, CasFailed)
        assert error.details["reason"] == "TXN_PREPARED"
        at = group.decisions.decide(T1, [p])
        await group.on(group.resolve, tablet, T1, at)
        error = refusal(await group.on(group.stage_in, tablet, T1, {2: 2}))
        assert isinstance(error, CasFailed)
        assert error.details == {"reason": "TXN_ENDED", "at": str(at)}
        await group.on(group.stage_in, tablet, T2, {3: 3})
        await group.on(group.drop, tablet, T2)
        error = refusal(await group.on(group.stage_in, tablet, T2, {3: 3}))
        assert isinstance(error, NotFound)
        assert error.details["reason"] == "TXN_GONE"
        assert (await group.on(group.scan, tablet))[1] == {1: 1}

    with_group(work)


def test_staging_does_not_wait_for_another_prepared_transaction():
    async def work(group: StagedGroup) -> None:
        await group.on(group.prepared, T1, {1: 1})
        result = await group.on(group.stage_in, group.tablet, T2, {2: 2})
        assert not result.HasField("error"), result

    with_group(work)


SMALL = msgspec.structs.replace(OPTIONS, txn_stage_bytes=4096)


def test_staged_bytes_of_a_tablet_are_bounded():
    async def work(group: StagedGroup) -> None:
        rows = {k: k for k in range(150)}
        assert not (await group.on(group.stage_in, group.tablet, T1, rows)).HasField("error")
        error = refusal(await group.on(group.stage_in, group.tablet, T2, rows))
        assert isinstance(error, Throttled), error
        assert "txn_stage_bytes (4096)" in error.message
        error = refusal(await group.on(group.stage_in, group.tablet, T1, rows))
        assert isinstance(error, TooLarge), error
        assert "txn_stage_bytes (4096)" in error.message
        assert len(await group.on(group.stages, group.tablet)) == 1
        await group.on(group.drop, group.tablet, T1)
        assert not (await group.on(group.stage_in, group.tablet, b"3" * 16, rows)).HasField("error")

    with_group(work, options=SMALL)


def test_staged_bytes_of_a_server_are_bounded():
    async def work(group: StagedGroup) -> None:
        rows = {k: k for k in range(200)}
        keys = group.by_tablet(rows)
        full = []
        for number, (tablet, mine) in enumerate(keys.items()):
            transaction = b"%016d" % number
            result = await group.on(group.stage_in, tablet, transaction, {k: k for k in mine})
            full.append(result.error.code)
            await group.pause(300)  # the servers add up what is staged
        assert full[0] == ""
        error = refusal(result)
        assert isinstance(error, Throttled), full
        assert "txn_stage_total_bytes (4096)" in error.message

    with_group(
        work, tablets=4, options=msgspec.structs.replace(OPTIONS, txn_stage_total_bytes=4096)
    )


SHORT = msgspec.structs.replace(OPTIONS, txn_timeout_s=3)


def test_stage_that_is_not_kept_expires_and_a_prepared_one_does_not():
    async def work(group: StagedGroup) -> None:
        await group.on(group.prepared, T1, {1: 1})
        kept = b"k" * 16
        for transaction in (T2, kept):
            await group.on(group.stage_in, group.tablet, transaction, {2: 2})
        for _ in range(5):
            await group.pause(1_500)
            result = await group.on(group.keep, group.tablet, kept)
            assert result.outcome == TransactionOutcome.DONE
        left = {s.transaction for s in await group.on(group.stages, group.tablet)}
        assert left == {T1, kept}
        error = refusal(await group.on(group.stage_in, group.tablet, T2, {2: 2}))
        assert error.details["reason"] == "TXN_GONE"

    with_group(work, options=SHORT)


def test_stage_expires_while_its_group_is_quiescent():
    async def work(group: StagedGroup) -> None:
        await group.on(group.stage_in, group.tablet, T1, {2: 2})
        await group.pause(2_500)
        assert group.replica().status().quiesced
        await group.pause(3_000)
        assert not await group.on(group.stages, group.tablet)

    with_group(work, options=SHORT)


def test_condition_is_staged_once_and_deletes_at_the_commit():
    async def work(group: StagedGroup) -> None:
        tablet = group.tablet
        await group.on(group.write, 1, 1)
        stage = pb.StageHeader(transaction=T1, part="p", number=0, where="v < 3")
        header = group.header(tablet, T1, 1, op=pb.DELETE_WHERE, stage=stage)
        first = await group.on(group.put, header, {})
        again = await group.on(group.put, header, {})
        assert again.duplicate
        assert (again.timestamp, again.crc) == (first.timestamp, first.crc)
        group.parts[T1, tablet] = [first.crc]
        await group.on(group.write, 2, 2)
        await group.on(group.write, 3, 3)
        assert (await group.on(group.scan, tablet))[1] == {1: 1, 2: 2, 3: 3}
        group.decisions.trying.add(T1)
        p = (await group.on(group.prepare, tablet, T1, group.decisions.attempt())).time
        await group.on(group.resolve, tablet, T1, group.decisions.decide(T1, [p]))
        assert (await group.on(group.scan, tablet))[1] == {3: 3}

    with_group(work)


@pytest.mark.parametrize(
    ("stage", "words"),
    [
        (None, "belongs to a transaction"),
        (pb.StageHeader(transaction=T1, part="p"), "that no tablet can apply"),
        (pb.StageHeader(transaction=b"short", part="p", where="true"), "that no tablet can apply"),
    ],
)
def test_malformed_request_for_a_condition_is_refused(stage, words):
    async def work(group: StagedGroup) -> None:
        header = group.header(group.tablet, T1, 1, op=pb.DELETE_WHERE, stage=stage)
        assert words in str(refusal(await group.on(group.put, header, {})))
        assert not await group.on(group.stages, group.tablet)

    with_group(work)
