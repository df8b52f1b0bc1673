"""Read leases of running replicas: no leader answers by its lease once a later leader is elected.

Each scenario isolates a leader while its lease holds, and lets one event make its followers elect another one
as early as they ever can. `LeaseWatch` checks all members after every step of the simulation.
"""

import pytest

from nyala.common.errors import NotLeader, TimedOut
from nyala.common.options import Options
from nyala.raft.reconfiguration.changes import Change, ChangeKind
from nyala.replica.replica import Replica
from tests.sim.checkers.leases import LeaseWatch
from tests.unit.replica.support.member_support import member
from tests.unit.replica.support.replica_support import GROUP, scenario, uuid_of

SLOW, FAST = -100_000, 100_000
"""Rates of clocks, in millionths: the bound up to which leases are safe."""


def running(fleet) -> list[Replica]:
    return [r for n in fleet.alive() for r in fleet.host(n).all()]


def leases(slow=SLOW, fast=FAST, options=None):
    """Run a scenario in a fleet in which server 0, with a slow clock, leads, and watch the leases."""

    def decorate(fn):
        @scenario(start=False, options=options)
        async def steps(fleet):
            for number, process in enumerate(fleet.processes):
                process.clock.drift_ppm = fast if number else slow
            watch = LeaseWatch(lambda: running(fleet))
            await fleet.start()
            await lead(fleet, 0)
            await fleet.write(b"k 1")
            await fleet.settled()
            fleet.loop.after_step = watch.look
            await fn(fleet)
            fleet.loop.after_step = lambda: None
            assert watch.held, "the leader had a lease"

        steps.__name__ = fn.__name__
        return steps

    return decorate


async def lead(fleet, number):
    """Make a server lead."""
    leader = await fleet.leader()
    if leader != number:
        fleet.replica(leader).transfer(uuid_of(number))
        await fleet.until(lambda: fleet.leading() == number, "handed over")
    await fleet.pass_ms(600)


def ask(fleet, number):
    """Return the time at which a server can be read at once, as a request that comes now."""
    return fleet.processes[number].incarnation.inside(fleet.replica(number).read_now)


async def confirmed(fleet, number=0):
    """Give a leader a lease that has just begun."""
    await fleet.as_(number, fleet.replica(number).start_read(None, 3000))
    await fleet.until(lambda: ask(fleet, number) > 0, "a lease", timeout_ms=100)


def isolate(fleet, number=0):
    fleet.network.partition([f"s{number}"], [f"s{n}" for n in range(3) if n != number])


def stand_soon(fleet, number):
    """Let a follower stand as soon as it may."""
    fleet.replica(number).node.core.timeout = 1


def exited(fleet, number, server=0):
    """Make a server assume that the process of another one has exited, which may be wrong."""
    node = fleet.replica(number).node
    assert fleet.processes[number].incarnation.inside(node.peer_exited, uuid_of(server))


async def another_leader(fleet, but=0):
    return await fleet.leader(among=[n for n in range(3) if n != but])


@leases()
async def test_look_up_under_lease_takes_no_round(fleet):
    await confirmed(fleet)
    outcome = await fleet.write(b"k 1")
    rounds = fleet.replica(0).node.core.round
    assert ask(fleet, 0) == outcome.stamp, "the time of the last acknowledged write"
    assert ask(fleet, 0) == outcome.stamp
    assert fleet.replica(0).node.core.round == rounds


@leases()
async def test_lease_is_renewed_while_it_is_used(fleet):
    await confirmed(fleet)
    for _ in range(1000):
        assert ask(fleet, 0)
        await fleet.pass_ms(1)


@pytest.mark.row("S4.29")
@leases()
async def test_isolated_leader_loses_its_lease_before_its_successor_leads(fleet):
    for _ in range(3):
        await confirmed(fleet)
        isolate(fleet)
        for number in (1, 2):
            stand_soon(fleet, number)
        await another_leader(fleet)
        assert not ask(fleet, 0)
        fleet.network.heal()
        await fleet.settled()
        await lead(fleet, 0)
        await fleet.write(b"k 1")


@leases()
async def test_refused_connection_ends_no_promise(fleet):
    """Both followers assume that the leader has exited, while it is only isolated."""
    await confirmed(fleet)
    isolate(fleet)
    for number in (1, 2):
        exited(fleet, number)
    for number in (1, 2):
        stand_soon(fleet, number)
    await another_leader(fleet)


@leases()
async def test_follower_on_which_the_lease_depends_does_not_stand(fleet):
    """The other follower has received nothing of the leader for long, and would vote at once."""
    fleet.network.partition(["s2"], ["s0", "s1"])
    await fleet.pass_ms(3000)
    await confirmed(fleet)
    fleet.network.heal()
    isolate(fleet)
    exited(fleet, 1)
    stand_soon(fleet, 1)
    await another_leader(fleet)


@leases()
async def test_restarted_follower_keeps_the_promise_of_its_earlier_process(fleet):
    """The other follower has received nothing of the leader for long, and needs its vote."""
    fleet.network.partition(["s2"], ["s0", "s1"])
    await fleet.pass_ms(3000)
    await confirmed(fleet)
    fleet.network.heal()
    isolate(fleet)
    fleet.processes[1].kill(power_cut=False)
    await fleet.restart(1)
    for _ in range(100):
        stand_soon(fleet, 2)
        await fleet.pass_ms(2)
    await another_leader(fleet)


@leases()
async def test_leader_that_hands_over_answers_nothing_by_its_lease(fleet):
    """It receives nothing after its order, for which the followers vote at once."""
    await confirmed(fleet)
    fleet.network.cut(["s1", "s2"], ["s0"])
    fleet.processes[0].incarnation.inside(fleet.replica(0).transfer, uuid_of(1))
    await another_leader(fleet)
    assert fleet.replica(0).is_leader, "it does not know its successor yet"
    assert not ask(fleet, 0)


@leases()
async def test_leader_has_no_lease_from_before_a_change_of_members(fleet):
    await confirmed(fleet)
    leader = fleet.replica(0)
    change = Change(ChangeKind.MODIFY, member(2, electable=False))
    done = fleet.spawn(0, leader.change_config([change], None, 3000))
    await fleet.until(lambda: leader.node.config.id.index > 1, "appended", timeout_ms=50)
    if not done:
        assert not ask(fleet, 0)
    await fleet.until(lambda: done, "committed")
    await confirmed(fleet)


@leases()
async def test_leader_of_a_quiesced_group_has_no_lease(fleet):
    await fleet.until(lambda: fleet.replica(0).node.quiesced, "the group quiesces")
    assert not ask(fleet, 0)
    await confirmed(fleet)
    assert not fleet.replica(0).node.quiesced


@leases()
async def test_read_that_waited_in_a_stopped_process_is_not_answered_by_the_lease(fleet):
    await confirmed(fleet)
    fleet.processes[0].pause()
    other = await another_leader(fleet)
    assert (await fleet.as_(other, fleet.call(other, b"k 1"))).result == b"2"
    isolate(fleet)
    late = fleet.spawn(0, fleet.replica(0).latest_point(50))
    fleet.processes[0].resume()
    assert fleet.replica(0).is_leader, "it does not know its successor yet"
    await fleet.until(lambda: late, "an answer")
    assert isinstance(late[0], TimedOut | NotLeader)


@leases(options=Options(wal_segment_mb=1, read_lease_ms=0))
async def without(fleet):
    await fleet.as_(0, fleet.replica(0).start_read(None, 3000))
    for _ in range(100):
        assert not ask(fleet, 0)
        await fleet.pass_ms(1)


def test_without_the_option_every_read_takes_a_round():
    with pytest.raises(AssertionError, match="had a lease"):
        without()


@leases(slow=-600_000, fast=600_000)
async def far_apart(fleet):
    for _ in range(10):
        await confirmed(fleet)
        isolate(fleet)
        for number in (1, 2):
            exited(fleet, number)
        for number in (1, 2):
            stand_soon(fleet, number)
        await another_leader(fleet)
        fleet.network.heal()
        await fleet.settled()
        await lead(fleet, 0)


def test_leases_are_unsafe_if_rates_of_clocks_differ_beyond_the_bound():
    """The bound is real, and the check detects what happens beyond it (docs/operate/clocks.md)."""
    with pytest.raises(AssertionError, match=f"has a read lease in term .* of {GROUP}"):
        far_apart()


@leases()
async def stopped_machine(fleet):
    """A virtual machine is stopped, with its clocks, and does not notice it when it is resumed."""
    await confirmed(fleet)
    began = fleet.loop.now_us()
    fleet.processes[0].pause()
    fleet.loop.after_step = lambda: None
    other = await another_leader(fleet)
    isolate(fleet)
    fleet.processes[0].clock.lose(fleet.loop.now_us() - began)
    fleet.processes[0].resume()
    assert fleet.replica(other).is_leader
    assert not ask(fleet, 0), "stale"


def test_leases_are_unsafe_if_a_machine_is_stopped_with_its_clocks():
    with pytest.raises(AssertionError, match="stale"):
        stopped_machine()
