"""Reports of a server that is still opening its replicas."""

from collections.abc import Sequence

from nyala.common.ids import TabletId
from nyala.env.files import Files
from nyala.replica import witness
from nyala.replica.superblock import Superblocks
from nyala.wal.cmeta import ConsensusMetadata
from nyala.wire.proto import nyala_pb2 as pb


class StartupReports:
    """The replicas of a data directory until they are open.

    Args:
        files: the file system.
        directory: the data directory.

    Attributes:
        closing: the server stops.
    """

    def __init__(self, files: Files, directory: str) -> None:
        self._files = files
        self._directory = directory
        self._groups: tuple[TabletId, ...] = ()
        self._with_data = 0
        self._begun: dict[TabletId, None] = {}
        self.closing = False

    def find(self) -> None:
        """List the replicas in the data directory, and count those with data. Lane DISK.

        Witnesses and deleted replicas have none, and nothing of them is loaded.
        """
        blocks = Superblocks(self._files, self._directory).groups()
        metadata = ConsensusMetadata(self._files, self._directory).groups()
        self._groups = tuple(sorted({*blocks, *metadata}))
        machines = f"{self._directory}/data"
        self._with_data = sum(
            not self._files.exists(f"{machines}/{group}/{witness.FILE_NAME}")
            for group in self._files.list(machines)
        )

    def begins(self, tablet: TabletId) -> None:
        """Record that a replica is being opened. Any lane."""
        self._begun[tablet] = None

    def reports(self, only: Sequence[TabletId] | None) -> list[pb.TabletReport]:
        """Return the reports of all replicas, or of these, while they are opened."""
        chosen = self._groups if only is None else only
        return [pb.TabletReport(tablet_id=t, state="BOOTSTRAPPING") for t in chosen]

    def progress(self) -> str:
        """Return what a server does that does not serve, as a text."""
        if self.closing:
            return "stopping"
        if not self._begun:
            return "starting: it reads its log"
        of = f" of {self._with_data}" if self._with_data else ""
        return f"starting: it opens replica {len(self._begun)}{of}"

    @property
    def left(self) -> int:
        """Number of replicas with data still to open; at least one until the server serves."""
        return max(1, self._with_data - len(self._begun))
