"""Damaged bytes: never a crash, never silently shorter than was proven durable, never a wrong entry."""

import contextlib
import logging
import random
from functools import cache

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nyala.common.errors import NyalaError
from nyala.common.ids import TabletId
from nyala.raft.messages import Entry, HardState
from nyala.wal.dump import Finding, dump_log
from nyala.wal.segments.format import (
    RECORD_HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    LogPosition,
    RecordKind,
    to_entry,
    to_group,
    to_hard_state,
)
from tests.sim.world.loop import run
from tests.unit.wal.support.wal_harness import A, B, C, Machine, durable, entry, vote
from tests.unit.wal.support.wal_mutator import (
    DISK,
    FORGERIES,
    Log,
    forged,
    mutated,
    records,
    sequence,
)

ENDS = ("killed", "idle", "closed")
State = dict[TabletId, tuple[tuple[Entry, ...], HardState | None]]
number = st.integers(0, 1 << 16)


def mutations(kinds):
    return st.lists(st.tuples(st.sampled_from(kinds), *[number] * 4), min_size=1, max_size=4)


@pytest.fixture(autouse=True)
def quiet():
    logging.getLogger("nyala.wal").setLevel(logging.CRITICAL)
    yield
    logging.getLogger("nyala.wal").setLevel(logging.NOTSET)


@cache
def base(end: str) -> Log:
    """A log of several segments with votes, replaced suffixes and a removed group."""
    rng = random.Random(end)
    rounds, segment_bytes = (5, 400) if end == "small" else (45, 2000)

    async def main(loop):
        machine = Machine(loop)
        wal, _ = await machine.open(segment_bytes=segment_bytes)
        last, term = dict.fromkeys((A, B, C), 0), 1
        for turn in range(rounds):
            group = rng.choice((A, B, C))
            if rng.random() < 0.2 and last[group]:
                last[group], term = rng.randrange(last[group]), term + 1
            new = [
                entry(last[group] + 1 + i, rng.randbytes(rng.randrange(120)), term)
                for i in range(rng.choice((1, 1, 2)))
            ]
            state = vote(term, rng.choice((None, "cd" * 16))) if rng.random() < 0.3 else None
            await durable(wal, group, new, state)
            await loop.delay(20_000)
            last[group] += len(new)
            if turn == 20:
                wal.forget(C)
                last[C] = 0
        if end == "idle":
            await loop.delay(1_000_000)
        files = machine.disk._mounted
        assert files is not None
        if end == "closed":
            await wal.close()
        log = {n: files.read(f"/d/wal/{n}") for n in files.list("/d/wal") if n.endswith(".wal")}
        machine.disk.kill()
        return log

    return run(main)


@cache
def states(end: str) -> list[tuple[LogPosition, State]]:
    """Content of the log after each of its records, by an independent replay."""
    groups: dict[TabletId, dict[int, Entry]] = {}
    votes: dict[TabletId, HardState] = {}
    found: list[tuple[LogPosition, State]] = [(LogPosition(0, 0), {})]
    for name, record in records(base(end)):
        group = to_group(record.group)
        if record.kind is RecordKind.ENTRY:
            own = groups.setdefault(group, {})
            for index in [i for i in own if i >= record.index]:
                del own[index]
            own[record.index] = to_entry(record)
        elif record.kind is RecordKind.HARD_STATE:
            votes[group] = to_hard_state(record)
        elif record.kind is RecordKind.FORGET:
            groups.pop(group, None)
            votes.pop(group, None)
        known = sorted({*groups, *votes})
        state = {g: (tuple(groups.get(g, {}).values()), votes.get(g)) for g in known}
        found.append((LogPosition(sequence(name), record.offset), state))
    return found


def proven(whole: Log, damaged: Log) -> LogPosition:
    """Return the position up to which intact headers, in their places, prove the log durable."""
    known = [LogPosition(0, 0)]
    for name, record in records(whole):
        place = slice(record.offset, record.offset + RECORD_HEADER_BYTES)
        if damaged[name][place] == whole[name][place]:
            known.append(record.synced)
    for name, data in whole.items():
        if damaged[name][:SEGMENT_HEADER_BYTES] == data[:SEGMENT_HEADER_BYTES]:
            known.append(LogPosition(sequence(name), 0))
    return max(known)


async def opened(loop, log, times=2):
    """Write a log to a disk and open it; return the results as (state, corrupt, damage of any group)."""
    machine = Machine(loop)
    for name, data in log.items():
        machine.put(f"/d/wal/{name}", data)
    results = []
    seen = dump_log(machine.files(), "/d/wal")
    for turn in range(times):
        wal, recovered = await machine.open(segment_bytes=2000)
        if not turn:
            agrees(seen, wal)
        whole = {g: r for g, r in recovered.items() if r.corrupt is None}
        for group, own in whole.items():
            first = own.entries[0].id.index if own.entries else 1
            due = list(range(first, first + len(own.entries)))
            assert [e.id.index for e in own.entries] == due
            assert await wal.read(group, first, 1 << 20) == own.entries
        state = {g: (tuple(r.entries), r.hard_state) for g, r in whole.items()}
        unknown = any(not d.certain for d in wal.damage)
        results.append((state, sorted(g for g in recovered if g not in whole), unknown))
        await wal.close()
    return results


def agrees(seen, wal):
    """`nyala wal dump` has the findings of a start."""
    problems = [(s.path, p) for s in seen.segments for p in s.problems]
    found = [(path, p.offset, p.groups) for path, p in problems if p.finding is Finding.DAMAGE]
    assert found == [
        (d.error.details["path"], int(d.error.details["offset"]), d.groups) for d in wal.damage
    ]
    torn = [(path, p.offset) for path, p in problems if p.finding is Finding.TORN]
    assert torn == ([(wal.torn.path, wal.torn.offset)] if wal.torn is not None else [])


def check(end, damaged, results):
    """The recovered log is the log as of one of its records, none before the proven position."""
    assert all(r[:2] == results[0][:2] for r in results)  # the verdict stays
    state, corrupt, unknown = results[0]
    floor = proven(base(end), damaged)
    assert any(
        cut == len(states(end)) or states(end)[cut][0] >= floor
        for cut, (_, expected) in enumerate(states(end), 1)
        if all(
            g in corrupt or state.get(g) == expected.get(g) or (unknown and g not in state)
            for g in (A, B, C)
        )
    ), f"the recovered log is none of the states from {floor} on; corrupt: {corrupt}"


@pytest.mark.row("S4.21", "S4.26")
@pytest.mark.parametrize("end", ENDS)
@given(damage=mutations(DISK))
@example(damage=[("flip", 0, 0, 0, 0)])
@example(damage=[("cut", 2, 0, 0, 0)])
def test_disk_faults_leave_log_correct_up_to_proven_point_or_report_damage(end, damage):
    damaged = mutated(base(end), damage)
    check(end, damaged, run(lambda loop: opened(loop, damaged)))


@pytest.mark.parametrize("end", ENDS)
@given(damage=mutations(FORGERIES))
def test_arbitrary_log_bytes_raise_nyala_error(end, damage):
    with contextlib.suppress(NyalaError):
        run(lambda loop: opened(loop, forged(base(end), damage)))


@pytest.mark.full
@pytest.mark.row("S4.21")
def test_each_byte_of_a_small_log_flipped_in_turn():
    log = base("small")
    assert len(log) > 1

    async def main(loop):
        for name, data in log.items():
            for at in range(min(len(data), len(data.rstrip(b"\0")) + 9)):
                flipped = data[:at] + bytes([data[at] ^ 8]) + data[at + 1 :]
                damaged = {**log, name: flipped}
                check("small", damaged, await opened(loop, damaged, times=1))

    run(main)
