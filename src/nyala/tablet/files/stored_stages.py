"""Staged transactions as a manifest stores them, and the files with their batches.

A flush writes the batches that no file has yet to one `.stg` file, a section for each. The manifest names the
file as long as a stage needs one of its batches.
"""

from collections.abc import Sequence

import msgspec

from nyala.env.files import Files
from nyala.storage.sections import Sections, SectionWriter
from nyala.tablet.files.file_kind import FileKind

_BATCH = 16


class StoredBatch(msgspec.Struct, frozen=True, array_like=True):
    """One staged batch.

    Attributes:
        number: order of the batch in its part.
        file: number of its file.
        section: position in the file.
        size_bytes: its length.
        crc: CRC32C of it.
        checked: version of the schema that it was checked against.
    """

    number: int
    file: int
    section: int
    size_bytes: int
    crc: int
    checked: int


class StoredPrepare(msgspec.Struct, frozen=True, array_like=True):
    """A prepared stage.

    Attributes:
        at: prepare time.
        attempt: attempt of the coordinator.
        parts: names of the parts that count, in order.
    """

    at: int
    attempt: tuple[int, int, int]
    parts: list[str]


class StoredStage(msgspec.Struct, frozen=True, array_like=True):
    """The stage of one transaction.

    Attributes:
        transaction: its id.
        kept: stamp of its last STAGE or KEEP.
        attempt: highest attempt so far.
        parts: batches of each part.
        prepared: None: it is not prepared.
    """

    transaction: bytes
    kept: int
    attempt: tuple[int, int, int]
    parts: list[tuple[str, list[StoredBatch]]]
    prepared: StoredPrepare | None


class StoredStages(msgspec.Struct, frozen=True):
    """All that a tablet knows of transactions, at a flush point.

    Attributes:
        stages: those that are not applied.
        ended: commit times of those that are applied, above `settled`.
        dropped: transactions without a stage that are refused, each with the time until which.
        settled: no decision has a commit time at or below it, or will.
        written: no version begins or ended above it.
    """

    stages: list[StoredStage] = []
    ended: list[tuple[bytes, int]] = []
    dropped: list[tuple[bytes, int]] = []
    settled: int = 0
    written: int = 0

    @property
    def prepare_times(self) -> list[int]:
        """Prepare times of the prepared stages."""
        return [s.prepared.at for s in self.stages if s.prepared is not None]

    @property
    def files(self) -> list[int]:
        """Numbers of the files that the stages need, ascending."""
        parts = [batches for stage in self.stages for _, batches in stage.parts]
        return sorted({batch.file for batches in parts for batch in batches})


def stage_name(number: int) -> str:
    """Return the name of a file of staged batches."""
    return f"{number:08d}.stg"


def write(files: Files, path: str, batches: Sequence[bytes]) -> None:
    """Write a new file of staged batches, synced (its name is not).

    Args:
        files: the file system.
        path: path of the file.
        batches: sections of the file, in order.
    """
    parts: list[bytes] = []
    writer = SectionWriter(FileKind.STAGE, lambda buffers: parts.extend(map(bytes, buffers)))
    for batch in batches:
        writer.add(_BATCH, batch)
    writer.finish()
    files.write_new(path, parts)


class StageFiles:
    """Files of staged batches, each opened once.

    Args:
        files: the file system.
        directory: directory of the tablet.
    """

    def __init__(self, files: Files, directory: str) -> None:
        self._files = files
        self._directory = directory
        self._open: dict[int, Sections] = {}

    def read(self, number: int, section: int) -> bytes:
        """Return one batch.

        Raises:
            Corrupt: the file is damaged.
        """
        if number not in self._open:
            path = f"{self._directory}/{stage_name(number)}"
            self._open[number] = Sections(self._files.map(path), path, FileKind.STAGE)
        data = bytes(self._open[number].section(section))
        self._open[number].check(self._files)
        return data
