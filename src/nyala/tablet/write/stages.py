"""Staged transactions of a tablet: a pure function of the operations applied. Lane APPLY, except `earliest`.

docs/internals/transactions.md has the rules. Nothing here reads or writes rows: `apply_transactions.py`
checks batches and applies them. What operations can add is bounded by the constants below, which are part of
the format.
"""

from collections.abc import Iterable, Iterator, Mapping

from nyala.common.errors import BadChecksum
from nyala.common.ids import PreparedTransaction
from nyala.tablet.files.stored_stages import StageFiles, StoredStages
from nyala.tablet.files.transaction_ops import crc_of_batch
from nyala.tablet.write.stage import Stage, StagedBatch, StageSummary, loaded_stage, stored_stage

MAX_STAGES = 10_000
"""Maximum number of staged transactions of a tablet."""
MAX_BATCHES = 65_536
"""Maximum number of batches of one stage."""
MAX_DROPPED = 100_000
"""Maximum number of transactions that a tablet remembers as dropped, of which it had no stage."""
OVERHEAD_BYTES = 256
"""Memory of a stage or a batch besides the batch's bytes, about."""


class Stages:
    """Stages of a tablet, and its transactions that have ended.

    Args:
        stored: as the manifest has it.
        flush_stamp: time of the manifest's flush point.

    Attributes:
        stages: of transactions that are not applied.
        ended: commit times of those that are applied, above `settled`.
        dropped: transactions without a stage that are refused, each with the time until which.
        settled: no decision has a commit time at or below it, or will.
        written: no version begins or ends above it.
        prepared: the prepared transactions; replaced when they change, and never changed itself. Any lane.
        earliest: the least prepare time; None: nothing is prepared. Any lane.
        memory_bytes: memory that a flush would free. Any lane.
        built_bytes: memory of rows that are built; the second flush after they were begun frees it. Any lane.
        file_bytes: length of the batches that are in files. Any lane.
    """

    def __init__(self, stored: StoredStages, flush_stamp: int) -> None:
        self.stages = {s.transaction: loaded_stage(s) for s in stored.stages}
        self.ended = dict(stored.ended)
        self.dropped = dict(stored.dropped)
        self.settled = stored.settled
        self.written = stored.written if stored.prepare_times else flush_stamp
        self.memory_bytes = 0
        self.built_bytes = 0
        self.file_bytes = sum(s.size_bytes for s in self.stages.values())
        self.earliest: int | None = None
        self.prepared: Mapping[bytes, PreparedTransaction] = {}
        self.note_prepared()

    def note_prepared(self) -> None:
        """Compute `prepared` again, after a stage was prepared, ended to be, or got another attempt."""
        found = [(t, s.prepared) for t, s in self.stages.items() if s.prepared is not None]
        self.prepared = {t: PreparedTransaction(p.at, p.attempt) for t, p in found}
        self.earliest = min((p.at for _, p in found), default=None)

    def size_of(self, transaction: bytes) -> int:
        """Return the bytes of the staged batches of a transaction. Any lane."""
        stage = self.stages.get(transaction)
        return 0 if stage is None else stage.size_bytes

    def has_batch(self, transaction: bytes, part: str, number: int) -> bool:
        """Return whether a batch is staged already. Any lane.

        Args:
            transaction: its id.
            part: name of the part.
            number: order of the batch in its part.
        """
        stage = self.stages.get(transaction)
        return stage is not None and number in stage.parts.get(part, ())

    def listed(self) -> list[StageSummary]:
        """Return all stages, without their batches."""
        return [
            StageSummary(
                t, s.kept, s.size_bytes, s.count, 0 if s.prepared is None else s.prepared.at
            )
            for t, s in self.stages.items()
        ]

    def kept_until(self, bound: int) -> list[bytes]:
        """Return the transactions that were kept last at or below a time and are not prepared."""
        return [t for t, s in self.stages.items() if s.kept <= bound and s.prepared is None]

    def ended_at(self, transaction: bytes, at: int) -> int | None:
        """Return the commit time of a transaction that was applied here; None: it was not.

        Args:
            transaction: its id.
            at: commit time of a decision; every decision at or below `settled` was applied.
        """
        return self.ended.get(transaction, at if at <= self.settled else None)

    @property
    def size_bytes(self) -> int:
        """Bytes of all staged batches, in memory and in files. Any lane."""
        return self.memory_bytes + self.file_bytes

    def verify(self, files: StageFiles) -> None:
        """Read every staged batch.

        Raises:
            Corrupt: a file is missing or damaged, or has other bytes than were staged.
        """
        for transaction, stage in self.stages.items():
            for batch in stage.all_batches:
                if crc_of_batch(batch.read(files)) != batch.crc:
                    raise BadChecksum(
                        f"a staged batch of transaction {transaction.hex()} is damaged; copy the replica "
                        "from another server"
                    )

    def begin(self, transaction: bytes, stamp: int) -> Stage | None:
        """Return the stage of a transaction, a new one if it has none; None: there are too many."""
        found = self.stages.get(transaction)
        if found is None and len(self.stages) < MAX_STAGES:
            found = self.stages[transaction] = Stage(stamp)
        return found

    def add(self, stage: Stage, part: str, number: int, batch: bytes, checked: int) -> None:
        """Add a batch to a stage.

        Args:
            stage: the stage.
            part: name of the part.
            number: order in the part; it has none of this number.
            batch: bytes of the write.
            checked: version of the schema that it was checked against.
        """
        made = StagedBatch(len(batch), crc_of_batch(batch), checked, batch)
        stage.parts.setdefault(part, {})[number] = made
        stage.count += 1
        stage.size_bytes += len(batch)
        self.memory_bytes += len(batch) + OVERHEAD_BYTES

    def forget(self, transaction: bytes, stamp: int, until: int) -> None:
        """Remove a stage, if there is one, and refuse the transaction until a time.

        Args:
            transaction: its id.
            stamp: timestamp of the entry that is applied; what was refused until then is removed.
            until: hybrid time.
        """
        self._remove(transaction)
        self.dropped.pop(transaction, None)
        for old, end in list(self._oldest_dropped()):
            if end >= stamp:
                break
            del self.dropped[old]
        self.dropped[transaction] = until

    def _oldest_dropped(self) -> Iterator[tuple[bytes, int]]:
        for number, item in enumerate(self.dropped.items()):
            if number == 2:  # each drop adds one, and removes two at most
                return
            yield item

    def end(self, transaction: bytes, at: int) -> None:
        """Note that a stage was applied at its commit time."""
        self._remove(transaction)
        self.ended[transaction] = self.written = at

    def settle(self, settled: int) -> None:
        """Remove the transactions that have ended and cannot be asked for any more."""
        if settled > self.settled:
            self.settled = settled
            self.ended = {t: at for t, at in self.ended.items() if at > settled}

    def drop_parts(self, stage: Stage, kept: tuple[str, ...]) -> None:
        """Remove the parts of a stage that do not count."""
        for part in [p for p in stage.parts if p not in kept]:
            dropped = stage.parts.pop(part).values()
            stage.count -= len(dropped)
            stage.size_bytes -= sum(b.size_bytes for b in dropped)
            self._release(dropped)
            self._release_built(stage, part)

    def _remove(self, transaction: bytes) -> None:
        stage = self.stages.pop(transaction, None)
        if stage is not None:
            self._release(stage.all_batches)
            for part in list(stage.built):
                self._release_built(stage, part)
            self.note_prepared()

    def _release(self, batches: Iterable[StagedBatch]) -> None:
        for batch in batches:
            if batch.payload is None:
                self.file_bytes -= batch.size_bytes
            else:
                self.memory_bytes -= batch.size_bytes + OVERHEAD_BYTES

    def _release_built(self, stage: Stage, part: str) -> None:
        self.built_bytes -= sum(r.memory_bytes for r in stage.built.pop(part, ()))

    def unflushed(self) -> list[StagedBatch]:
        """Return the batches that no file has, in the order in which a flush writes them."""
        every = [batch for stage in self.stages.values() for batch in stage.all_batches]
        return [batch for batch in every if batch.payload is not None]

    def written_to(self, file: int, batches: list[StagedBatch]) -> None:
        """Release the bytes of batches that a flush has written; some may have been applied meanwhile.

        Args:
            file: number of the file, which the manifest names.
            batches: those of `unflushed`, when the flush was prepared.
        """
        for section, batch in enumerate(batches):
            batch.payload, batch.place = None, (file, section)
        left = self.unflushed()
        self.memory_bytes = sum(b.size_bytes + OVERHEAD_BYTES for b in left)
        self.drop_built()
        every = sum(s.size_bytes for s in self.stages.values())
        self.file_bytes = every - sum(b.size_bytes for b in left)

    def drop_built(self) -> None:
        """Drop the built rows that a flush has left before; the others stay until the next one."""
        self.built_bytes = 0
        for stage in self.stages.values():
            for part, found in list(stage.built.items()):
                stage.built[part] = kept = [r for r in found if not r.flushed]
                for rows in kept:
                    rows.flushed = True
                    self.built_bytes += rows.memory_bytes

    def stored(self, file: int) -> StoredStages:
        """Return this as a manifest stores it.

        Args:
            file: number of the file that the batches of `unflushed` are written to.
        """
        sections = {id(batch): n for n, batch in enumerate(self.unflushed())}

        def place(batch: StagedBatch) -> tuple[int, int]:
            return (file, sections[id(batch)]) if id(batch) in sections else batch.place

        stages = [stored_stage(t, s, place) for t, s in self.stages.items()]
        found = StoredStages(
            stages, list(self.ended.items()), list(self.dropped.items()), self.settled
        )
        if self.earliest is None:
            return found
        return StoredStages(stages, found.ended, found.dropped, self.settled, self.written)
