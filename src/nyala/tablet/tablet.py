"""Tablet: apply, view, flush, compact; satisfies the replica's state-machine protocol by shape."""

from collections.abc import Callable, Sequence

from nyala.common.ids import Operation
from nyala.env.files import Files
from nyala.tablet.manifest import AnyCut, TabletInfo
from nyala.tablet.view import View

Install = Callable[[], None]
Build = Callable[[], Install]


class Tablet:
    """The columnar store of one tablet."""

    info: TabletInfo

    @classmethod
    def create(cls, files: Files, directory: str, info: TabletInfo) -> "Tablet":
        """Make the files of an empty tablet, durable on return."""
        raise AssertionError

    @classmethod
    def open(cls, files: Files, directory: str) -> "Tablet":
        """Open from the manifest; replay starts after `cut.op`."""
        raise AssertionError

    @property
    def cut(self) -> AnyCut:
        """What the files stand for."""
        raise AssertionError

    @property
    def horizon(self) -> int:
        """The earliest time that can still be read."""
        raise AssertionError

    @property
    def rows(self) -> int:
        """Live rows."""
        raise AssertionError

    @property
    def data_bytes(self) -> int:
        """Bytes on disk and in memory."""
        raise AssertionError

    def apply(self, operations: Sequence[Operation]) -> list[bytes]:
        """Apply committed operations in order; one `ops.encode_result` each."""
        raise AssertionError

    def unflushed_bytes(self) -> int:
        """Memory that a flush would free."""
        raise AssertionError

    def prepare_flush(self, cut: AnyCut) -> Build | None:
        """Fix a cut at what has been applied."""
        raise AssertionError

    def prepare_compaction(
        self, horizon: int | None = None, *, force: bool = False
    ) -> Build | None:
        """Choose rowsets to merge; history below `horizon` is dropped."""
        raise AssertionError

    def view(self) -> View:
        """An immutable view."""
        raise AssertionError

    def close(self) -> None:
        """Release files and memory."""
        raise AssertionError
