"""Servers with slow writes of the clock's ceiling: only requests above the ceiling wait."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from nyala.common.errors import NyalaError
from nyala.common.hybrid_time import from_micros, to_micros
from nyala.common.ids import TabletId
from nyala.env.tasks import Lane
from nyala.raft.messages import PeerBatch
from nyala.replica.member import held_batches
from nyala.replica.multiraft.failure_detector import FailureDetector
from tests.unit.replica.support.replica_support import GROUP, scenario, uuid_of

SECOND_US = 1_000_000


def slow_ceiling(fleet, number: int, seconds: float) -> list[int]:
    """Make one server's writes of the ceiling slow; its log's disk stays as fast as before.

    Returns:
        The times, in microseconds, at which writes of the ceiling began since then; the list grows.
    """
    tasks = fleet.processes[number].env.tasks
    draw = tasks._draw_us
    began: list[int] = []

    def drawn(lane: Lane) -> Any:
        if lane is not Lane.CLOCK:
            return draw(lane)
        began.append(fleet.loop.now_us())
        return seconds * SECOND_US

    tasks._draw_us = drawn
    return began


@contextmanager
def taken_by(number: int, least: int) -> Iterator[list[PeerBatch]]:
    """Record the batches that a server accepts with hybrid times from `least` on."""
    taken: list[PeerBatch] = []
    original = FailureDetector.receive

    def note(detector: FailureDetector, batch: PeerBatch) -> list[TabletId]:
        if batch.to == uuid_of(number) and batch.hlc >= least:
            taken.append(batch)
        return original(detector, batch)

    with mock.patch.object(FailureDetector, "receive", note):
        yield taken


@contextmanager
def refused_ceiling(fleet, number: int, refused: bool) -> Iterator[None]:
    """Let one server's disk refuse the ceiling, and nothing else."""
    disk = fleet.processes[number].disk
    before = disk.on_operation

    def refuse(kind: str, path: str) -> None:
        if refused and "hybrid_clock" in path:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        before(kind, path)

    with mock.patch.object(disk, "on_operation", refuse):
        yield


def durable(fleet, number: int) -> int:
    return int(fleet.processes[number].env.files.read("/data/hybrid_clock").split()[0])


@scenario()
async def test_slow_ceiling_write_costs_no_leadership_and_no_write(fleet):
    leader = await fleet.leader()
    term = fleet.replica(leader).status().term
    for number in range(3):
        slow_ceiling(fleet, number, 2.0)
    for _ in range(60):
        began = fleet.loop.now_us()
        await fleet.write(b"k 1")
        assert fleet.loop.now_us() - began < 100_000
        assert all(p.server.clock.peek() < durable(fleet, n) for n, p in enumerate(fleet.processes))
        await fleet.pass_ms(400)
    assert (fleet.leading(), fleet.replica(leader).status().term) == (leader, term)


@scenario()
async def test_peer_messages_above_ceiling_wait_for_disk(fleet):
    leader = await fleet.leader()
    follower = (leader + 1) % 3
    await fleet.write(b"k 1")
    await fleet.settled()
    slow_ceiling(fleet, follower, 1.0)
    clock = fleet.processes[follower].server.clock
    far = clock.peek() + from_micros(8 * SECOND_US)
    batches = [
        PeerBatch(uuid_of(leader), uuid_of(follower), far + n, (), incarnation=n) for n in range(3)
    ]
    with taken_by(follower, far) as taken:
        for batch in batches:
            fleet.deliver(follower, batch)
        assert clock.peek() < far
        assert not taken
        await fleet.until(lambda: len(taken) >= 3, "the disk took the ceiling")
    assert taken[:3] == batches, "batches are delivered in order"
    assert far < clock.seen < durable(fleet, follower)
    await fleet.write(b"k 1")
    await fleet.settled()


@scenario()
async def test_batches_behind_one_that_meets_a_bug_are_delivered(fleet):
    """Later batches are delivered too: the task that releases them continues."""
    leader = await fleet.leader()
    follower = (leader + 1) % 3
    slow_ceiling(fleet, follower, 1.0)
    clock = fleet.processes[follower].server.clock
    whole, delivered = FailureDetector.receive, list[int]()

    def receive(detector: FailureDetector, batch: PeerBatch) -> list[TabletId]:
        if batch.incarnation in (7001, 7002, 7003):
            delivered.append(batch.incarnation)
            if batch.incarnation != 7002:
                raise ZeroDivisionError("planted")
            return []
        return whole(detector, batch)

    with mock.patch.object(FailureDetector, "receive", receive):
        for first, after in ((7001, [7001, 7002]), (7003, [7001, 7002, 7003])):
            far = clock.peek() + from_micros(8 * SECOND_US)
            for number in range(first, min(first + 2, 7004)):
                batch = PeerBatch(uuid_of(leader), uuid_of(follower), far, (), incarnation=number)
                fleet.deliver(follower, batch)
            await fleet.until(lambda a=after: delivered == a, "delivered", 20_000)
            await fleet.pass_ms(10_000)
    fleet.forgive(ZeroDivisionError)


@scenario()
async def test_messages_of_stopped_server_are_not_admitted_later(fleet):
    leader = await fleet.leader()
    follower = (leader + 1) % 3
    slow_ceiling(fleet, follower, 1.0)
    clock = fleet.processes[follower].server.clock
    far = clock.peek() + from_micros(8 * SECOND_US)
    third = uuid_of(3 - leader - follower)
    ended, alive = (PeerBatch(u, uuid_of(follower), far, ()) for u in (uuid_of(leader), third))
    with taken_by(follower, far) as taken:
        for batch in (ended, alive):
            fleet.deliver(follower, batch)
        fleet.processes[leader].kill()
        await fleet.until(lambda: alive in taken, "the disk took the ceiling")
    assert ended not in taken


def test_waiting_messages_beyond_limit_are_dropped(monkeypatch):
    monkeypatch.setattr(held_batches, "MAX_HELD_BYTES", 500)

    @scenario()
    async def go(fleet):
        leader = await fleet.leader()
        follower = (leader + 1) % 3
        slow_ceiling(fleet, follower, 1.0)
        clock, taken = fleet.processes[follower].server.clock, list[int]()
        for first in (1000, 2000):
            await fleet.pass_ms(10_000)
            far = clock.peek() + from_micros(8 * SECOND_US)
            with taken_by(follower, far) as batches:
                for number in range(first, first + 5):  # 200 bytes each
                    batch = PeerBatch(
                        uuid_of(leader), uuid_of(follower), far, (), incarnation=number
                    )
                    fleet.deliver(follower, batch)
                await fleet.until(lambda: len(batches) >= 2, "the disk took the ceiling")
                await fleet.pass_ms(2000)
            taken += [b.incarnation for b in batches if b.incarnation < 5000]
        assert taken == [1000, 1001, 2000, 2001]

    go()


def test_held_messages_of_stopped_server_leave_room_for_others(monkeypatch):
    monkeypatch.setattr(held_batches, "MAX_HELD_BYTES", 500)

    @scenario()
    async def go(fleet):
        leader = await fleet.leader()
        follower = (leader + 1) % 3
        slow_ceiling(fleet, follower, 1.0)
        far = fleet.processes[follower].server.clock.peek() + from_micros(8 * SECOND_US)
        third = uuid_of(3 - leader - follower)
        full = [
            PeerBatch(uuid_of(leader), uuid_of(follower), far, (), incarnation=n) for n in range(2)
        ]
        later = PeerBatch(third, uuid_of(follower), far, ())
        with taken_by(follower, far) as taken:
            for batch in full:
                fleet.deliver(follower, batch)
            fleet.processes[leader].kill()
            await fleet.pass_ms(200)  # the follower notices it; the disk needs a second
            fleet.deliver(follower, later)
            await fleet.until(lambda: later in taken, "the disk took the ceiling")
        assert not any(batch in taken for batch in full)

    go()


def test_held_messages_that_a_refused_ceiling_drops_leave_room_for_later_ones(monkeypatch):
    monkeypatch.setattr(held_batches, "MAX_HELD_BYTES", 500)

    @scenario()
    async def go(fleet):
        leader = await fleet.leader()
        follower = (leader + 1) % 3
        clock = fleet.processes[follower].server.clock
        for first, refused in ((1000, True), (2000, False)):
            far = clock.peek() + from_micros(8 * SECOND_US)
            with taken_by(follower, far) as taken, refused_ceiling(fleet, follower, refused):
                for number in range(first, first + 2):
                    batch = PeerBatch(
                        uuid_of(leader), uuid_of(follower), far, (), incarnation=number
                    )
                    fleet.deliver(follower, batch)
                await fleet.pass_ms(2000)
            numbers = [b.incarnation for b in taken if b.incarnation < 5000]
            assert numbers == ([] if refused else [2000, 2001])

    go()


@scenario()
async def test_write_and_read_above_ceiling_wait_until_it_is_durable(fleet):
    leader = await fleet.leader()
    await fleet.write(b"k 1")
    for number in range(3):
        slow_ceiling(fleet, number, 0.3)
    clock = fleet.processes[leader].server.clock
    for ahead_s, ask in (
        (6, lambda at: fleet.replica(leader).read_point(at, 10_000)),
        (3, lambda at: fleet.call(leader, b"k 1", seen=at, timeout_ms=10_000)),
    ):
        at = clock.peek() + from_micros(ahead_s * SECOND_US)
        began = fleet.loop.now_us()
        answer = fleet.spawn(leader, ask(at))
        await fleet.until(lambda a=answer: a, "an answer")
        assert not isinstance(answer[0], NyalaError), answer
        assert fleet.loop.now_us() - began >= SECOND_US // 4
        assert clock.seen >= at
        assert to_micros(durable(fleet, leader)) > to_micros(at)
    assert fleet.replica(leader, GROUP).error is None


@scenario()
async def test_write_waits_for_ceiling_above_client_observed_time(fleet):
    """The wall clock has passed the client's time, the hybrid clock has not."""
    leader = await fleet.leader()
    await fleet.write(b"k 1")
    before, began = durable(fleet, leader), slow_ceiling(fleet, leader, 3.0)
    await fleet.until(lambda: began, "half of the ceiling's reach is used")
    at = before + from_micros(SECOND_US // 10)
    outcome = await fleet.as_(leader, fleet.call(leader, b"k 1", seen=at, timeout_ms=10_000))
    assert outcome.stamp > at
    assert durable(fleet, leader) > outcome.stamp
