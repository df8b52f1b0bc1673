"""Membership changes requested from a leader, and a fleet with servers for them."""

from nyala.common.errors import NotLeader, Unavailable
from nyala.common.options import Options
from nyala.raft.membership import Configuration, Member, initial
from nyala.raft.reconfiguration.changes import Change, ChangeKind
from nyala.wal.cmeta import ConsensusMetadata
from tests.sim.world.mounted import SimFiles
from tests.unit.replica.support.replica_support import GROUP, scenario, uuid_of

SMALL = Options(wal_segment_mb=1, wal_retain_mb=0, flush_bytes=1 << 18, flush_log_bytes=1 << 18)
TINY = Options(wal_segment_mb=1, wal_retain_mb=0, flush_bytes=1 << 30, flush_log_bytes=1 << 30)


def member(number, **more):
    return Member(uuid_of(number), f"s{number}:9", f"s{number}:7", **more)


def add(number, **more):
    return Change(ChangeKind.ADD, member(number, **more))


def remove(number):
    return Change(ChangeKind.REMOVE, member(number))


def modify(number, **more):
    return Change(ChangeKind.MODIFY, member(number, **more))


async def change(fleet, *changes, expected=None, timeout_ms=5000, leader=None):
    """Change the members at the leader, and at a later leader when one is lost."""
    while True:
        number = await fleet.leader() if leader is None else leader
        try:
            work = fleet.replica(number).change_config(changes, expected, timeout_ms)
            found = await fleet.as_(number, work)
        except Unavailable:
            await fleet.pass_ms(50)
        except NotLeader as err:
            if err.details.get("reason") != "STEPPING_DOWN":
                raise
            await fleet.until(lambda n=number: fleet.leading() not in (None, n), "handed over")
        else:
            assert isinstance(found, Configuration)
            return found


async def join(fleet, number, **more):
    """Make a replica on a server that is to become a member."""
    members = [*fleet.config.members, member(number, **more)]
    await fleet.create(number, GROUP, initial(members))


def saved(fleet, number):
    """The configuration in a server's consensus metadata, on its disk."""
    metadata = ConsensusMetadata(SimFiles(fleet.processes[number].disk), "/data")
    found = metadata.load(GROUP)
    assert found is not None
    return found[1]


def three(servers=4, options=None):
    """A fleet of which the first three have the group."""

    def decorate(fn):
        @scenario(servers=servers, options=options, start=False)
        async def steps(fleet):
            fleet.config = fleet.configuration(range(3))
            for number in range(servers):
                await fleet.boot(number)
            for number in range(3):
                await fleet.create(number, GROUP)
            await fn(fleet)

        steps.__name__ = fn.__name__
        return steps

    return decorate


def names(config):
    return [int(m.uuid, 16) for m in config.members]
