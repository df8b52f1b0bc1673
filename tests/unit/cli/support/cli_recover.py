"""Directory of a stopped server for the tests of recovery commands."""

import asyncio

import pytest

from nyala.common.ids import CommittedOperation, OpId, ServerUuid, TableId, TabletId
from nyala.datadir.instance import format_instance
from nyala.env.clock import write_ceiling
from nyala.env.files import SystemFiles
from nyala.env.tasks import LoopTasks
from nyala.journal import steps
from nyala.journal.journal import JournalMachine
from nyala.journal.manifest import JournalInfo
from nyala.raft.membership import Configuration, Member
from nyala.raft.messages import HardState
from nyala.replica.state_machine import FlushPoint
from nyala.replica.superblock import ReplicaStage, Superblock, Superblocks
from nyala.tablet.files.replicated_ops import RowOp
from nyala.wal.cmeta import ConsensusMetadata
from tests.unit.tablet.support.tablet_support import Driver, numbered
from tests.unit.wal.support.wal_harness import durable, entry, open_wal

U1, U2, U3, U4 = (ServerUuid(str(n) * 32) for n in (1, 2, 3, 4))
GROUP = TabletId("a" * 32)
CUT = OpId(1, 3)
"""Operation up to which the files contain the log: three writes."""
BEFORE = OpId(1, 2)


def config(*uuids, at=BEFORE):
    return Configuration(tuple(Member(u, f"p{u[0]}:1", f"a{u[0]}:1") for u in uuids), at, (U4,))


def table(directory):
    """Make a tablet of 30 rows, and flush it."""
    driver = Driver(directory)
    for first in (0, 10, 20):
        driver.write(RowOp.INSERT, numbered(first, first + 10))
    flush(driver.tablet, driver.now)


def journal(directory):
    """Make a journal of 30 entries, and flush it."""
    info = JournalInfo(GROUP, TableId("b" * 32), "j", 1, 1 << 30)
    made = JournalMachine.create(SystemFiles(), directory, info)
    step = steps.encode_step(steps.Step([], [steps.Append("log", b"x" * n) for n in range(10)]))
    made.apply([CommittedOperation(OpId(1, n), 1000 * n, step) for n in (1, 2, 3)])
    flush(made, 3000)


def flush(machine, stamp):
    """Flush a machine, and close it."""
    build = machine.prepare_flush(FlushPoint(CUT, stamp))
    assert build is not None
    build()()
    machine.close()


@pytest.fixture(params=[table, journal], ids=["table", "journal"])
def folder(tmp_path, request):
    """The directory of a stopped server with one replica of three: 30 rows or entries, and its log."""
    files, directory = SystemFiles(), str(tmp_path)
    format_instance(files, directory, "tserver", U1, replaces=False)
    write_ceiling(files, f"{directory}/hybrid_clock", 1 << 20)
    request.param(f"{directory}/data/{GROUP}")
    ConsensusMetadata(files, directory).save(GROUP, HardState(5, U2), config(U1, U2, U3))
    stage(tmp_path, ReplicaStage.READY)
    logged(tmp_path, 1, 6)
    return tmp_path


def stage(folder, wanted, **more):
    Superblocks(SystemFiles(), str(folder)).save(Superblock(GROUP, wanted, **more))


def logged(folder, first, last):
    async def main():
        tasks = LoopTasks()
        wal, _ = await open_wal(SystemFiles(), tasks, directory=str(folder), uuid=U1)
        await durable(wal, GROUP, [entry(n) for n in range(first, last + 1)], HardState(7, U1))
        await wal.close()
        await tasks.close()

    asyncio.run(main())
