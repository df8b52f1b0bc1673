"""Files of a copy on this disk, from the first byte until it is installed or removed.

    no replica here:  COPYING -> copy/<group> filled, log written -> metadata, data/<group> -> READY
    a tombstone here: the same, but it stays TOMBSTONED until READY: its promises stay on disk throughout

A crash before READY leaves nothing that serves: the next start removes what there is, and a copy that is
made again begins anew (`lifecycle.open_all`). All calls block: lane DISK, but for `Staging.append`.
"""

from collections.abc import Callable

from nyala.common.ids import TabletId
from nyala.env.files import AppendFile, Buffer
from nyala.raft.membership import Configuration
from nyala.raft.messages import HardState
from nyala.replica.context import ReplicaContext
from nyala.replica.copy.protocol import CopyFile
from nyala.replica.superblock import ReplicaStage, Superblock

SYNC_BYTES = 16 << 20


class Staging:
    """The folder in which a copy's files come together, beside those of replicas.

    Args:
        context: the process.
        group: of the copy.
        piece: returns how much of so many bytes is best written at a time.
    """

    def __init__(
        self, context: ReplicaContext, group: TabletId, piece: Callable[[int], int]
    ) -> None:
        self._files = context.env.files
        self.path = context.staging_directory(group)
        self._piece = piece
        self._open: AppendFile | None = None
        self._unsynced = 0

    def clear(self) -> None:
        """Begin with an empty folder."""
        self.close()
        self._files.remove_tree(self.path)
        self._files.make_dir(self.path)

    def start(self, file: CopyFile) -> int:
        """Open a file to go on with; return how much of it is there."""
        assert self._open is None, f"{self.path} has a file open"
        path = f"{self.path}/{file.name}"
        done = self._files.size(path) if self._files.exists(path) else 0
        self._open = self._files.open_append(path, done, direct=True)
        return done

    def append(self, data: Buffer) -> bool:
        """Write the next piece; return whether it is time to sync, not all at the end of the file.

        There the log's syncs would wait for it.
        """
        assert self._open is not None, "no file was started"
        whole = memoryview(data)
        while whole:
            part = self._piece(len(whole))
            self._open.append([whole[:part]])
            whole = whole[part:]
        self._unsynced += len(data)
        due = self._unsynced >= SYNC_BYTES
        if due:
            self._unsynced = 0
        return due

    def sync(self) -> None:
        """Sync what was written, and let go of its memory for what comes; pieces may be written meanwhile."""
        assert self._open is not None, "no file was started"
        self._open.sync(data_only=True)
        self._open.release()

    def finish(self) -> None:
        """Sync the file that is open, and close it."""
        if self._open is not None:
            self._open.sync(data_only=False)
            self._open.release()
        self.close()

    def close(self) -> None:
        """Close the file that is open, if any."""
        opened, self._open = self._open, None
        if opened is not None:
            opened.close()

    def remove(self) -> None:
        """Remove all of it; no error if there is nothing."""
        self.close()
        self._files.remove_tree(self.path)


def mark(context: ReplicaContext, group: TabletId) -> None:
    """Note on disk, where there was no replica before, that a copy is being made."""
    context.superblocks.save(Superblock(group, ReplicaStage.COPYING))


def install(
    context: ReplicaContext, group: TabletId, hard_state: HardState, config: Configuration
) -> None:
    """Move the staged files to the directory of the replica, which is not READY yet.

    Args:
        context: of the process.
        group: of the replica.
        hard_state: term and vote with which it begins.
        config: the committed configuration.
    """
    files, place = context.env.files, context.machine_directory(group)
    parent, staging = place.rpartition("/")[0], context.staging_directory(group)
    files.sync_dir(staging)
    context.cmeta.save(group, hard_state, config)
    files.make_dir(parent)
    files.remove_tree(place)
    files.sync_dir(parent)  # nothing of what was there may come back into what is there now
    files.rename(staging, place)
    files.sync_dir(parent)
    files.sync_dir(staging.rpartition("/")[0])


def fill(context: ReplicaContext, group: TabletId, witness_file: str) -> None:
    """Move the staged files to the directory of a witness, and remove its file: from then on it has data.

    Args:
        context: of the process.
        group: of the witness.
        witness_file: name of its file.
    """
    files, place = context.env.files, context.machine_directory(group)
    staging = context.staging_directory(group)
    for name in files.list(staging):
        files.rename(f"{staging}/{name}", f"{place}/{name}")
    files.sync_dir(place)
    files.remove(f"{place}/{witness_file}")
    files.sync_dir(place)
