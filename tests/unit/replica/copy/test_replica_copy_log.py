"""The local log of a copy's target: full when the copy is cancelled, or over its limits during the copy."""

from nyala.common.errors import Throttled
from nyala.common.ids import TabletId
from nyala.common.options import Options
from nyala.replica.copy.protocol import CopyStage
from nyala.replica.status import State
from tests.unit.replica.support.copy_steps import fill, flush
from tests.unit.replica.support.copy_support import scenario
from tests.unit.replica.support.replica_copy_refusals import nothing_changed
from tests.unit.replica.support.replica_support import GROUP

OPTIONS = Options(wal_segment_mb=1, wal_retain_mb=0, copy_chunk_bytes=700)


@scenario(options=OPTIONS)
async def test_copy_is_cancelled_while_log_of_target_is_full(fleet):
    """The files of the copy may fill the disk, so that only its end frees space."""
    await fill(fleet)
    leader = await flush(fleet)
    await fill(fleet)
    wal, refused = fleet.host(3).wal, []

    def full(group, entries, hard_state):
        refused.append(group)
        raise Throttled("the log cannot grow")

    wal.reserve = full
    await fleet.order(3, leader)
    await fleet.until(lambda: refused, "the log has refused entries")
    ended = fleet.processes[3].run(lambda: fleet.host(3).copies.cancel(GROUP))
    await fleet.pass_ms(5000)
    assert fleet.stage(3) is CopyStage.CANCELLED
    await ended
    await nothing_changed(fleet)


@scenario(options=OPTIONS)
async def test_entries_of_copy_over_incomplete_copy_are_retained(fleet):
    """A server with a copy interrupted by a crash gets the replica again, and its log is over its limit."""
    await fill(fleet)
    leader = await flush(fleet)
    await fill(fleet)
    target = fleet.processes[3]
    target.disk.die_when = lambda call, path: "/copy/" in path and call == "append"
    await fleet.order(3, leader)
    await fleet.until(lambda: not target.alive, "the target has crashed")
    await fleet.restart(3)
    assert fleet.replica(3).state is State.FAILED
    wal, held = fleet.host(3).wal, list[dict[TabletId, int]]()
    reserve = wal.reserve

    def noted(*args):
        held.append(wal.held_bytes())
        return reserve(*args)

    wal.reserve = noted
    await fleet.order(3, leader)
    await fleet.copied(3)
    assert len(held) > 1
    assert not any(held), "the entries are retained, not released as those of a failed replica"
