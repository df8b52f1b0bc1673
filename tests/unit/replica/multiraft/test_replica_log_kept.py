"""Entries retained in the log though files and members have them: unsaved metadata, a starting copy."""

import errno
from dataclasses import replace

from nyala.common.options import Options
from nyala.raft.membership import Member
from nyala.raft.reconfiguration.changes import Change, ChangeKind
from nyala.replica.copy.protocol import CopyStage
from tests.unit.replica.support import copy_support
from tests.unit.replica.support.copy_steps import fill, flush
from tests.unit.replica.support.replica_support import GROUP, scenario, uuid_of
from tests.unit.replica.support.retention_support import STRICT

SMALL = Options(wal_segment_mb=1, wal_retain_mb=0)
BIG = b"k" * 200_000 + b" 1"


@scenario(options=SMALL)
async def test_configuration_stays_in_log_until_metadata_are_saved(fleet):
    """A full disk refuses consensus metadata for a while; the log is all that has the new members then."""
    leader = await fleet.leader()
    cmeta = fleet.replica(leader).context.cmeta

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    cmeta.save = full
    removed = (leader + 1) % 3
    member = Member(uuid_of(removed), f"s{removed}:9", f"s{removed}:7")
    change = Change(ChangeKind.REMOVE, member)
    await fleet.as_(leader, fleet.replica(leader).change_config([change], None, 10_000))
    for _ in range(20):
        await fleet.write(BIG)
    await fleet.as_(leader, fleet.replica(leader).flush())
    await fleet.pass_ms(5000)
    assert fleet.host(leader).wal.stats().collected == 0
    for number in range(3):
        fleet.processes[number].kill()
    await fleet.boot(leader)
    config = fleet.replica(leader).status().config
    assert config.get(uuid_of(removed)) is None, "the removal was collected before it was saved"


@scenario(options=STRICT)
async def test_log_over_its_limit_keeps_configuration_until_metadata_are_saved(fleet):
    """The log is released for a member that is away; a configuration among its entries is nowhere else."""
    leader = await fleet.leader()
    dead, other = (leader + 1) % 3, (leader + 2) % 3
    fleet.processes[dead].kill()
    for _ in range(2):
        await fleet.write(BIG)
    await fleet.as_(leader, fleet.replica(leader).flush())
    await fleet.pass_ms(2000)
    cmeta, wal = fleet.replica(leader).context.cmeta, fleet.host(leader).wal
    assert wal.held_bytes()[GROUP] > 0

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    cmeta.save = full
    member = fleet.replica(leader).status().config.get(uuid_of(other))
    change = Change(ChangeKind.MODIFY, replace(member, address="s9:77"))
    await fleet.as_(leader, fleet.replica(leader).change_config([change], None, 10_000))
    for _ in range(20):
        await fleet.write(BIG)
    await fleet.as_(leader, fleet.replica(leader).flush())
    await fleet.pass_ms(5000)
    for number in (leader, other):
        fleet.processes[number].kill()
    await fleet.boot(leader)
    config = fleet.replica(leader).status().config
    assert config.get(uuid_of(other)).address == "s9:77", "it was collected before it was saved"


@copy_support.scenario(options=Options(wal_segment_mb=1, wal_retain_mb=0, copy_chunk_bytes=700))
async def test_source_anchors_log_before_checkpoint_is_taken(fleet):
    """The lane has made the cut and the loop is notified late; later flushed files are copied next."""
    await fill(fleet)
    leader = await flush(fleet)
    tasks, machine = fleet.processes[leader].env.tasks, fleet.machine(leader)
    run = tasks.run
    late: list[int] = []

    async def fixed_and_heard_late(lane, fn, *args, **more):
        found = await run(lane, fn, *args, **more)
        if fn == machine.checkpoint and not late:
            late.append(found.flush_point.op.index)
            for _ in range(20):
                await fleet.call(leader, BIG)
            await fleet.replica(leader).flush()
            await tasks.sleep_ms(4000)
        return found

    tasks.run = fixed_and_heard_late
    await fleet.order(3, leader)
    progress = await fleet.copied(3)
    assert progress.stage is CopyStage.WAITING
    assert progress.retries == 0
    assert fleet.replica(3, GROUP).status().last.index >= late[0] + 20


@scenario(options=SMALL)
async def test_configuration_that_follows_another_one_is_saved_after_full_disk(fleet):
    """The first one is saved late, when the second one waits for space already."""
    leader = await fleet.leader()
    context = fleet.replica(leader).context
    tasks, save = fleet.processes[leader].env.tasks, context.cmeta.save
    run, saved, refused = tasks.run, list[int](), list[int]()

    def full_once(group, hard_state, config):
        if saved and not refused:
            refused.append(config.id.index)
            raise OSError(errno.ENOSPC, "No space left on device")
        save(group, hard_state, config)
        saved.append(config.id.index)

    async def first_heard_late(lane, fn, *args, **more):
        found = await run(lane, fn, *args, **more)
        if fn is full_once and not refused:
            await fleet.until(lambda: refused, "the second configuration is refused")
        return found

    context.cmeta.save, tasks.run = full_once, first_heard_late
    for number in ((leader + 1) % 3, (leader + 2) % 3):
        member = fleet.replica(leader).status().config.get(uuid_of(number))
        change = Change(ChangeKind.MODIFY, replace(member, address=f"s{number}:77"))
        await fleet.as_(leader, fleet.replica(leader).change_config([change], None, 10_000))
    await fleet.pass_ms(5000)
    assert refused
    assert saved[-1] == fleet.replica(leader).status().committed_config.id.index


@scenario(options=SMALL)
async def test_log_of_idle_group_is_released_once_its_configuration_is_saved(fleet):
    """No other event of the group follows after its metadata were saved."""
    leader = await fleet.leader()
    cmeta = fleet.replica(leader).context.cmeta
    save, full = cmeta.save, [True]

    def refuse(*args):
        if full:
            raise OSError(errno.ENOSPC, "No space left on device")
        save(*args)

    cmeta.save = refuse
    for _ in range(8):
        await fleet.write(BIG)
    number = (leader + 1) % 3
    member = fleet.replica(leader).status().config.get(uuid_of(number))
    change = Change(ChangeKind.MODIFY, replace(member, address=f"s{number}:77"))
    await fleet.as_(leader, fleet.replica(leader).change_config([change], None, 10_000))
    await fleet.as_(leader, fleet.replica(leader).flush())
    await fleet.pass_ms(30_000)
    assert fleet.host(leader).wal.stats().pinned_by == (GROUP,)
    full.clear()
    await fleet.pass_ms(10_000)
    assert fleet.replica(leader).running_member().driver.saving is None
    assert fleet.host(leader).wal.stats().pinned_by == ()
