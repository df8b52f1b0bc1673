"""One staged transaction of a tablet: its batches by part, its prepare time, rows that are built."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from nyala.tablet.files.stored_stages import StageFiles, StoredBatch, StoredPrepare, StoredStage
from nyala.tablet.files.transaction_ops import PartCount, crc_of_part

AttemptNumber = tuple[int, int, int]
NO_ATTEMPT: AttemptNumber = (0, 0, 0)


@dataclass(slots=True, eq=False)
class StagedBatch:
    """One staged batch.

    Attributes:
        size_bytes: its length.
        crc: CRC32C of it.
        checked: version of the schema that it was checked against.
        payload: its bytes; None: they are in a file.
        place: file, and section in it, once a manifest names them.
    """

    size_bytes: int
    crc: int
    checked: int
    payload: bytes | None
    place: tuple[int, int] = (0, 0)

    def read(self, files: StageFiles) -> bytes:
        """Return its bytes."""
        return files.read(*self.place) if self.payload is None else self.payload


class PartRows(Protocol):
    """Rows that were built from consecutive batches of a part: a `BuiltRows`.

    Attributes:
        first: number of the first batch.
        batches: how many batches they are.
        flushed: a flush was made since they were begun.
    """

    first: int
    batches: int
    flushed: bool

    @property
    def memory_bytes(self) -> int:
        """Approximate memory."""
        ...


@dataclass(slots=True, eq=False)
class Prepared:
    """A prepared stage: its prepare time, its attempt, and the parts that count, in order."""

    at: int
    attempt: AttemptNumber
    parts: tuple[str, ...]


@dataclass(slots=True, eq=False)
class Stage:
    """Staged batches of one transaction.

    Attributes:
        kept: stamp of its last STAGE or KEEP.
        attempt: highest attempt so far.
        parts: batches of each part, by number.
        prepared: None: it is not prepared.
        built: rows of each part that are built already (`built_rows.py`), in the order of their batches.
        count: number of batches.
        size_bytes: length of all of them. Any lane.
    """

    kept: int
    attempt: AttemptNumber = NO_ATTEMPT
    parts: dict[str, dict[int, StagedBatch]] = field(default_factory=dict)
    prepared: Prepared | None = None
    built: dict[str, list[PartRows]] = field(default_factory=dict)
    count: int = 0
    size_bytes: int = 0

    def batches(self, parts: tuple[str, ...]) -> list[StagedBatch]:
        """Return the batches of some parts, in the order in which they take effect."""
        return [batch for part in parts for _, batch in sorted(self.parts[part].items())]

    @property
    def all_batches(self) -> list[StagedBatch]:
        """Batches of every part."""
        return [batch for part in self.parts.values() for batch in part.values()]

    def has(self, counts: tuple[PartCount, ...]) -> bool:
        """Return whether the parts named are whole, and named once."""
        if len({c.part for c in counts}) < len(counts):
            return False
        return all(
            c.part in self.parts
            and len(self.parts[c.part]) == c.batches
            and crc_of_part([b.crc for _, b in sorted(self.parts[c.part].items())]) == c.crc
            for c in counts
        )


@dataclass(frozen=True, slots=True)
class StageSummary:
    """A stage without its batches.

    Attributes:
        transaction: its id.
        kept: stamp of its last STAGE or KEEP.
        size_bytes: length of its batches.
        batches: number of them.
        prepared: prepare time; 0: it is not prepared.
    """

    transaction: bytes
    kept: int
    size_bytes: int
    batches: int
    prepared: int


def stored_stage(
    transaction: bytes, stage: Stage, place: Callable[[StagedBatch], tuple[int, int]]
) -> StoredStage:
    """Return a stage as a manifest stores it.

    Args:
        transaction: its id.
        stage: the stage.
        place: returns the file of a batch, and the section in it.
    """
    parts = [
        (
            part,
            [
                StoredBatch(number, *place(b), b.size_bytes, b.crc, b.checked)
                for number, b in batches.items()
            ],
        )
        for part, batches in stage.parts.items()
    ]
    held = stage.prepared
    prepared = None if held is None else StoredPrepare(held.at, held.attempt, list(held.parts))
    return StoredStage(transaction, stage.kept, stage.attempt, parts, prepared)


def loaded_stage(stored: StoredStage) -> Stage:
    """Return the stage that a manifest stores."""
    parts = {
        part: {
            b.number: StagedBatch(b.size_bytes, b.crc, b.checked, None, (b.file, b.section))
            for b in batches
        }
        for part, batches in stored.parts
    }
    held = stored.prepared
    prepared = None if held is None else Prepared(held.at, held.attempt, tuple(held.parts))
    batches = [b for found in parts.values() for b in found.values()]
    size_bytes = sum(b.size_bytes for b in batches)
    return Stage(
        stored.kept, stored.attempt, parts, prepared, count=len(batches), size_bytes=size_bytes
    )
