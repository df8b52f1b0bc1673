"""The runner of seeds: durable state, counts, failure reports; planted mistakes are detected."""

import random
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from nyala.common.ids import OpId, TabletId
from nyala.raft import quorum
from nyala.raft.messages import Entry, EntryKind, HardState
from nyala.replica.member.reading.pending_reads import PendingReads
from nyala.wal.segments import format as wal_format
from tests.sim.checkers.linearizability import Kind, Op
from tests.sim.checkers.outcome import Outcome
from tests.sim.faults.plan import Swarm
from tests.sim.named.run import main as chaos
from tests.sim.runs import core_run
from tests.sim.runs.core_run import ask_outvoted_leaders, run_core
from tests.sim.runs.judge import SECONDS, judge, swarm_of
from tests.sim.runs.run import ENOUGH_SEEDS, Batch, main
from tests.sim.runs.workload import History, NotLinearizable, culprits
from tests.sim.systems.core_cluster import Make, core, host
from tests.sim.systems.core_server import Mistakes
from tests.sim.world.files import SimDisk
from tests.sim.world.mounted import SimFiles
from tests.sim.world.trace import Trace

GROUP = TabletId("7" * 32)


def records(sequence: int, offset: int, *terms: int) -> bytes:
    """Return a hard state that votes, then an entry of each term."""
    raw, out = bytes.fromhex(GROUP), b""
    drafts = [wal_format.draft_hard_state(raw, HardState(terms[-1], "9" * 32))]  # type: ignore[arg-type]
    drafts += [
        wal_format.draft_entry(raw, Entry(OpId(t, n + 1), n + 1, EntryKind.NOOP))
        for n, t in enumerate(terms)
    ]
    for one in drafts:
        at = wal_format.LogPosition(sequence, offset + len(out))
        out += wal_format.pack_record_header(one, at, wal_format.LogPosition(0, 0)) + one.payload
    return out


def opened() -> tuple[SimDisk, Any]:
    disk = SimDisk(random.Random(1))
    files = disk.mount()
    files.make_dir("/data/wal")
    file = files.open_append("/data/wal/0000000001.wal.new")
    file.append([wal_format.pack_segment_header("5" * 32, 1)])
    file.sync(data_only=False)
    return disk, file


def named() -> tuple[SimDisk, SimFiles, Any]:
    """Return an opened file of which the name is durable too."""
    disk, _ = opened()
    files = disk.mount()
    files.rename("/data/wal/0000000001.wal.new", "/data/wal/0000000001.wal")
    files.sync_dir("/data/wal")
    size = files.size("/data/wal/0000000001.wal")
    return disk, files, files.open_append("/data/wal/0000000001.wal", size)


def test_entry_is_durable_after_sync_of_data_and_file_name():
    disk, file = opened()
    kept = disk.durable.group(GROUP)
    file.append([records(1, wal_format.SEGMENT_HEADER_BYTES, 3, 3)])
    assert not kept.holds(OpId(3, 2))
    file.sync(data_only=True)
    assert not kept.holds(OpId(3, 2)), "the file still has its temporary name"
    files = disk.mount()
    files.rename("/data/wal/0000000001.wal.new", "/data/wal/0000000001.wal")
    assert not kept.holds(OpId(3, 2)), "the rename was not synced"
    files.sync_dir("/data/wal")
    assert kept.holds(OpId(3, 2))
    assert kept.votes == {3: "9" * 32}
    kept.entry(4, 1)
    assert not kept.holds(OpId(3, 2)), "an entry replaces those above it"


def test_data_lost_by_failed_sync_is_not_durable_after_later_sync():
    disk, _, file = named()
    file.append([records(1, wal_format.SEGMENT_HEADER_BYTES, 3)])
    disk.faults.sync_eio_rate = 1.0
    with pytest.raises(OSError, match="Input/output"):
        file.sync(data_only=True)
    disk.faults.sync_eio_rate = 0.0
    file.sync(data_only=True)
    assert not disk.durable.group(GROUP).holds(OpId(3, 1))


def test_rewriting_damaged_segment_keeps_durable_entries():
    disk, files, file = named()
    file.append([records(1, wal_format.SEGMENT_HEADER_BYTES, 3, 3, 3, 3)])
    file.sync(data_only=True)
    kept = disk.durable.group(GROUP)
    damaged = bytearray(files.read("/data/wal/0000000001.wal"))
    third = wal_format.SEGMENT_HEADER_BYTES + 3 * wal_format.RECORD_HEADER_BYTES + 32
    damaged[third + 1] ^= 1  # the header of the second entry; a group of its own, on a real disk
    again = files.open_append("/data/wal/0000000001.wal", 0)
    again.append([bytes(damaged)])
    again.sync(data_only=False)
    assert kept.last == 4
    assert all(kept.holds(OpId(3, index)) for index in (1, 3, 4))


PLANTED = {
    "acknowledgement before the sync": (Mistakes(early_acks=True), range(5)),
    "vote not persisted": (Mistakes(forgets_votes=True), range(5)),
}
"""Planted mistakes, each with seeds that must find it."""


def hunt(make: Make, seeds: Sequence[int]) -> str:
    """Return the failure of random runs with a mistake."""
    for seed in seeds:
        servers = 3 if seed % 3 else 5
        try:
            run_core(seed, swarm_of(seed), seconds=SECONDS, servers=servers, make=make)
        except AssertionError as err:
            print(f"found by seed {seed}: {str(err)[:200]}")
            return str(err)
    raise AssertionError(f"not found in {seeds} seeds")


@pytest.mark.parametrize("what", PLANTED)
def test_planted_bug_is_detected_without_faults(what: str):
    mistakes, _ = PLANTED[what]
    with pytest.raises(AssertionError, match=r"acknowledges up to|durable on|sends its vote"):
        run_core(1, Swarm(), seconds=5, make=core(mistakes))


@pytest.mark.full
@pytest.mark.parametrize("what", PLANTED)
def test_planted_bug_is_detected_by_random_runs(what: str):
    mistakes, seeds = PLANTED[what]
    assert hunt(core(mistakes), seeds)


def test_stale_reads_of_deposed_leader_are_detected(monkeypatch: pytest.MonkeyPatch):
    """Rare in random mixtures, since a paused leader steps down in its first iteration."""
    seed = 1  # each of ten seeds finds it

    def complete(self: PendingReads, applied: int, applied_stamp: int, readable: int) -> int:
        self.confirmed(1 << 62)
        return answered(self, applied, applied_stamp, readable)

    with pytest.raises(NotLinearizable):
        ask_outvoted_leaders(seed, core(Mistakes(stale_reads=True)))
    answered = PendingReads.complete
    monkeypatch.setattr(PendingReads, "complete", complete)
    with pytest.raises(NotLinearizable):
        ask_outvoted_leaders(seed, host)


@pytest.mark.parametrize("make", [core(), host], ids=["core", "host"])
def test_too_small_majority_is_detected_without_faults(make: Make, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(quorum, "majority", lambda voters: voters // 2)
    with pytest.raises(AssertionError, match="which is durable on"):
        run_core(1, Swarm(), seconds=5, make=make)


@pytest.mark.full
@pytest.mark.parametrize("make", [core(), host], ids=["core", "host"])
def test_too_small_majority_is_detected_by_random_runs(make: Make, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(quorum, "majority", lambda voters: voters // 2)
    assert "which is durable on" in hunt(make, range(5))


def test_failure_report_has_message_trace_and_repeat_command(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(quorum, "majority", lambda voters: voters // 2)
    report = judge("core", 3, 5, lines=1000).report
    print(report)
    assert "./run sim --level core --seed 3 --seconds 5" in report
    assert "vote for me? my log ends at" in report
    assert "term 1: yes" in report
    assert re.search(r"= leader in term \d", report)
    assert any(line.startswith("! ") and "start" in line for line in report.splitlines())
    assert "not deterministic" not in report


@pytest.mark.parametrize("level", ["host", "cluster"])
def test_livelock_is_reported_as_failure_with_command(level: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(core_run, "EVENTS_PER_S", 20)
    report = judge(level, 3, 5).report
    assert "BudgetSpent" in report
    assert f"./run sim --level {level} --seed 3 --seconds 5" in report
    assert "not deterministic" not in report


def test_incorrect_answer_is_distinguished_from_correct_ones():
    ops = [
        Op(1, 2, Kind.WRITE, 7),
        Op(3, 4, Kind.READ, 7),
        Op(5, 6, Kind.READ, None),
        Op(7, 8, Kind.READ, 7),
    ]
    assert culprits(ops) == [ops[2]]


@pytest.mark.parametrize(
    ("clients", "writes", "faults", "why"),
    [
        (5, 600, 1, ""),
        (4, 600, 1, "4 clients"),
        (5, 599, 1, "10.0 writes/s"),
        (5, 600, 0, "0 faults in 60 s"),
    ],
)
def test_unavailability_counts_only_under_load(clients: int, writes: int, faults: int, why: str):
    trace = Trace()
    trace.counts["pause"] = faults
    outcome = Outcome(trace, History(writes=writes), 1, 60.0, 1, clients)
    assert outcome.invalid == why


def test_batch_without_a_fault_kind_fails(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    batch = Batch()
    batch.seeds["host"] = ENOUGH_SEEDS
    batch.faults = Counter({"pause": 3})
    assert "power cut" in batch.missing()
    assert "pause" not in batch.missing()
    monkeypatch.setattr(Batch, "missing", lambda self: ["bit rot"])
    assert main(["--seed", "4", "--level", "core", "--seconds", "2"]) == 1
    assert "FAILED: never happened: bit rot" in capsys.readouterr().out
    assert chaos(["seeds", "--seed", "4", "--level", "core", "--seconds", "2"]) == 0
    printed = capsys.readouterr().out
    assert "occurred in none of the seeds: bit rot" in printed
    assert "FAILED" not in printed
