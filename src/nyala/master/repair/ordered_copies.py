"""Copies that repair has ordered: their progress, and those no longer needed."""

from collections.abc import Iterator
from dataclasses import dataclass

from nyala.common.ids import ServerUuid, TabletId
from nyala.wire.proto import nyala_pb2 as pb


@dataclass(slots=True)
class _Copying:
    """Progress of a copy, and the time of its last change."""

    progress: tuple[object, ...]
    progressed_us: int


class OrderedCopies:
    """The copies that one leader ordered in one term. On the loop only.

    Args:
        failed_us: time without progress after which a copy is stuck.
    """

    def __init__(self, failed_us: int) -> None:
        self.failed_us = failed_us
        self._copies: dict[tuple[TabletId, ServerUuid], _Copying] = {}

    def __iter__(self) -> Iterator[tuple[TabletId, ServerUuid]]:
        return iter(list(self._copies))

    def ordered(self, tablet: TabletId, server: ServerUuid, now_us: int) -> None:
        """Record that a copy was ordered, perhaps again.

        Args:
            tablet: id of the tablet.
            server: the target.
            now_us: monotonic time, in microseconds.
        """
        self._copies.setdefault((tablet, server), _Copying((), now_us))

    def note_progress(
        self, tablet: TabletId, server: ServerUuid, progress: pb.CopyProgress, now_us: int
    ) -> None:
        """Record the progress of a copy. A failed copy that starts again has made none.

        Args:
            tablet: id of the tablet.
            server: the target.
            progress: as the target reports it.
            now_us: monotonic time, in microseconds.
        """
        values = (progress.stage, progress.bytes_done, progress.log_bytes)
        known = self._copies.get((tablet, server))
        if known is not None and known.progress != values and not progress.HasField("error"):
            self._copies[tablet, server] = _Copying(values, now_us)

    def forget(self, tablet: TabletId, server: ServerUuid) -> None:
        """Remove a copy that has ended."""
        self._copies.pop((tablet, server), None)

    def stuck(self, tablet: TabletId, server: ServerUuid, now_us: int) -> bool:
        """Return whether a copy was ordered and has made no progress for too long.

        Args:
            tablet: id of the tablet.
            server: the target.
            now_us: monotonic time, in microseconds.
        """
        known = self._copies.get((tablet, server))
        return known is not None and now_us - known.progressed_us > self.failed_us
