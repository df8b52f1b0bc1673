"""A disk that accepts the log and refuses a replica's own files: the replica fails, and the log continues."""

import errno
import os
from dataclasses import replace
from typing import Any

import pytest

from nyala.raft.reconfiguration.changes import Change, ChangeKind
from nyala.replica.member.driver import SAVE_TRIES
from nyala.replica.member.flusher import FLUSH_TRIES
from nyala.replica.status import State
from tests.unit.replica.support.replica_support import Fleet, scenario
from tests.unit.replica.support.retention_support import SMALL, STRICT, beside, busy


class Refusal:
    """Raises the same error a number of times, then calls the original."""

    def __init__(self, number: int, times: int, does):
        self.error = OSError(number, os.strerror(number))
        self.times = times
        self.does = does

    def __call__(self, *args):
        if self.times:
            self.times -= 1
            raise self.error
        return self.does(*args)


def refuse_flushes(fleet: Fleet, number: int, code: int, times: int) -> Refusal:
    machine: Any = fleet.machine(number)
    refusal = Refusal(code, times, machine.prepare_flush)
    machine.prepare_flush = refusal
    return refusal


@scenario(options=SMALL)
async def test_replica_with_permanently_refused_flush_fails_and_log_is_collected(fleet):
    await beside(fleet)
    await fleet.write(b"a 1")
    await fleet.settled()
    refusal = refuse_flushes(fleet, 0, errno.EIO, 10_000)
    await busy(fleet)
    await fleet.until(
        lambda: fleet.replica(0).state is State.FAILED, "the replica has failed", 120_000
    )
    assert 10_000 - refusal.times == FLUSH_TRIES
    assert fleet.replica(0).error is refusal.error
    assert max(await busy(fleet)) < 8
    await fleet.write(b"a 1")


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_full_or_intermittent_disk_fails_no_replica(code):
    full = code != errno.EIO

    @scenario(options=SMALL)
    async def steps(fleet):
        flusher = fleet.replica(0).running_member().flusher
        for _ in range(3):
            await fleet.write(b"a 1")
            await fleet.settled()
            times = 3 * FLUSH_TRIES if full else FLUSH_TRIES - 1
            refusal = refuse_flushes(fleet, 0, code, times)
            for _ in range(times):
                with pytest.raises(OSError, match=os.strerror(code)):
                    await fleet.as_(0, flusher.flush())
            assert await fleet.as_(0, flusher.flush())
            assert refusal.times == 0
            del fleet.machine(0).prepare_flush
        assert fleet.replica(0).state is State.RUNNING

    steps()


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_replica_with_refused_metadata_write_fails_unless_disk_is_full(code):
    @scenario(options=SMALL)
    async def steps(fleet):
        await fleet.write(b"a 1")
        await fleet.settled()
        cmeta = fleet.replica(0).context.cmeta
        cmeta.save = Refusal(code, 2 * SAVE_TRIES, cmeta.save)
        leader = await fleet.leader()
        other = next(n for n in (1, 2) if n != leader)
        member = fleet.replica(leader).status().config.get(f"{other:032x}")
        change = Change(ChangeKind.MODIFY, replace(member, address=member.address + "9"))
        await fleet.as_(leader, fleet.replica(leader).change_config([change], None, 10_000))
        await fleet.pass_ms(60_000)
        if code == errno.EIO:
            assert cmeta.save.times == SAVE_TRIES
            assert fleet.replica(0).error is cmeta.save.error
        else:
            assert cmeta.save.times == 0
            assert fleet.replica(0).running_member().driver.saving is None

    steps()


@scenario(options=STRICT)
async def test_leader_with_briefly_unreadable_log_catches_up_follower(fleet):
    """A process without free file descriptors can read its log again a moment later."""
    leader = await fleet.leader()
    late = (leader + 1) % 3
    fleet.processes[late].kill()
    for _ in range(20):
        await fleet.write(b"a 1")
    wal = fleet.host(leader).wal
    wal.read = Refusal(errno.EMFILE, 3, wal.read)
    await fleet.restart(late)
    await fleet.until(
        lambda: fleet.replica(late).status().last == fleet.replica(leader).status().last, "level"
    )
    assert wal.read.times == 0
    assert fleet.replica(leader).state is State.RUNNING
