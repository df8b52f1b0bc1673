"""A journal against its model: any steps, flushes, merges, failed ones too, and restarts in between."""

import random

import pytest

from nyala.common.ids import CommittedOperation, OpId, TableId, TabletId
from nyala.env.files import SystemFiles
from nyala.journal import entries, merge, steps
from nyala.journal.journal import JournalMachine
from nyala.journal.manifest import JournalInfo
from nyala.storage.flush_point import StoredFlushPoint
from tests.selected import first
from tests.unit.journal.journal_model import Model, draw_step

INFO = JournalInfo(TabletId("f" * 32), TableId("e" * 32), "ops", 1, 1 << 30)


class FullDisk(SystemFiles):
    """A disk that fails the next writes on request."""

    full = False

    def open_append(self, path, offset=0, *, direct=False):
        if self.full:
            raise OSError(28, "No space left on device")
        return super().open_append(path, offset, direct=direct)


class Driver:
    """A journal, its model, and the group's log since the cut."""

    def __init__(self, directory: str, seed: int) -> None:
        self.draw = random.Random(seed)
        self.files = FullDisk()
        self.directory = directory
        self.journal = JournalMachine.create(self.files, directory, INFO)
        self.model = Model()
        self.log: list[CommittedOperation] = []
        self.stamp = 1000
        self.results: dict[int, bytes] = {}

    def step(self) -> None:
        group = []
        for _ in range(self.draw.choice((1, 1, 4))):
            self.stamp += self.draw.choice((1, 1, 2, 4096))
            payload, result = self.batch() if self.draw.random() < 0.3 else self.one()
            operation = CommittedOperation(OpId(1, len(self.log) + 1), self.stamp, payload)
            self.log.append(operation)
            group.append(operation)
            self.results[operation.id.index] = result
        assert self.journal.apply(group) == [self.results[o.id.index] for o in group]

    def one(self) -> tuple[bytes, bytes]:
        """Return a step and its result."""
        step = draw_step(self.draw, self.model)
        result = self.model.apply(step, self.stamp)
        return steps.encode_step(step), steps.encode_result(result)

    def batch(self) -> tuple[bytes, bytes]:
        """Return a batch of steps and its results."""
        batch, results = [], []
        for _ in range(self.draw.choice((1, 2, 5))):
            batch.append(draw_step(self.draw, self.model))
            results.append(self.model.apply(batch[-1], self.stamp))
        return steps.encode_batch(steps.Batch(batch)), steps.encode_results(results)

    def work(self, prepared, *, fails: bool) -> None:
        if prepared is None:
            return
        self.files.full = fails
        try:
            install = prepared()
        except OSError:
            assert fails
            return
        finally:
            self.files.full = False
        for _ in range(self.draw.randrange(3)):
            self.step()
        install()

    def flush(self) -> None:
        last = self.log[-1]
        flush_point = StoredFlushPoint(last.id, last.stamp, b"sessions")
        self.work(self.journal.prepare_flush(flush_point), fails=self.draw.random() < 0.3)

    def merge(self) -> None:
        force = self.draw.random() < 0.3
        self.work(self.journal.prepare_compaction(force=force), fails=self.draw.random() < 0.3)

    def restart(self) -> None:
        digest = self.journal.state.digest
        self.journal.close()
        self.journal = JournalMachine.open(self.files, self.directory)
        left = self.log[self.journal.flush_point.op.index :]
        assert self.journal.apply(left) == [self.results[o.id.index] for o in left]
        assert self.journal.state.digest == digest

    def run(self, rounds: int) -> None:
        for _ in range(rounds):
            match self.draw.choice("ssssssssfffmr"):
                case "s":
                    self.step()
                case "f" if self.log:
                    self.flush()
                case "m":
                    self.merge()
                case "r":
                    self.restart()
            self.model.check(self.journal)


@pytest.mark.row("S3.27")
@pytest.mark.parametrize("seed", first(range(12), 3))
def test_journal_matches_model_through_flushes_merges_and_restarts(tmp_path, monkeypatch, seed):
    monkeypatch.setattr(entries, "CHUNK_BYTES", 4000)
    monkeypatch.setattr(entries, "CHUNK_ROWS", 20)
    monkeypatch.setattr(merge, "MAX_FILES", 3)  # some merges leave the oldest files
    driver = Driver(str(tmp_path / "journal"), seed)
    driver.run(300)
    assert driver.journal.state.last > 0
    driver.restart()
    driver.model.check(driver.journal)
