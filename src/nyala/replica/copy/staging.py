"""Files of a copy on this disk, from the first byte until it is installed or removed.

    no replica here: COPYING -> copy/<group> filled, log written -> metadata, data/<group> -> READY
    a tombstone here: the same, but it stays TOMBSTONED until READY: its vote stays on disk throughout

A crash before READY leaves nothing that serves: the next start removes the incomplete copy, and a repeated
copy starts from the beginning (`lifecycle.open_all`). All calls block: lane DISK, but for `Staging`: COMPUTE.
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
    """The staging directory of one copy, beside the directories of replicas.

    Args:
        context: the process.
        group: group of the copy.
        piece: returns how many of so many bytes to write at a time.
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
        """Empty the directory, or create it."""
        self.close()
        self._files.remove_tree(self.path)
        self._files.make_dir(self.path)

    def start(self, file: CopyFile) -> int:
        """Open a file for appending; return how many of its bytes are on disk."""
        assert self._open is None, f"{self.path} has a file open"
        path = f"{self.path}/{file.name}"
        done = self._files.size(path) if self._files.exists(path) else 0
        self._open = self._files.open_append(path, done, direct=True)
        return done

    def append(self, data: Buffer) -> bool:
        """Append the next piece; return whether a sync is due.

        Syncing all of a file at its end would delay the log's syncs.
        """
        assert self._open is not None, "no file was started"
        remaining = memoryview(data)
        while remaining:
            part = self._piece(len(remaining))
            self._open.append([remaining[:part]])
            remaining = remaining[part:]
        self._unsynced += len(data)
        due = self._unsynced >= SYNC_BYTES
        if due:
            self._unsynced = 0
        return due

    def sync(self) -> None:
        """Sync what was written and release its page cache. Further pieces may be written meanwhile."""
        assert self._open is not None, "no file was started"
        self._open.sync(data_only=True)
        self._open.release()

    def finish(self) -> None:
        """Sync and close the open file, if any."""
        if self._open is not None:
            self._open.sync(data_only=False)
            self._open.release()
        self.close()

    def close(self) -> None:
        """Close the open file, if any."""
        opened, self._open = self._open, None
        if opened is not None:
            opened.close()

    def remove(self) -> None:
        """Remove the directory; no error if it does not exist."""
        self.close()
        self._files.remove_tree(self.path)


def mark(context: ReplicaContext, group: TabletId) -> None:
    """Write the superblock of a copy that has begun, where there was no replica before."""
    context.superblocks.save(Superblock(group, ReplicaStage.COPYING))


def install(
    context: ReplicaContext, group: TabletId, hard_state: HardState, config: Configuration
) -> None:
    """Move the staged files to the directory of the replica, which is not READY and has no files yet.

    Args:
        context: context of the process.
        group: group of the replica.
        hard_state: its first term and vote.
        config: the committed configuration.
    """
    files, directory = context.env.files, context.machine_directory(group)
    parent, staging = directory.rpartition("/")[0], context.staging_directory(group)
    files.sync_dir(staging)
    context.cmeta.save(group, hard_state, config)
    files.make_dir(parent)
    files.sync_dir(
        parent
    )  # otherwise a power failure could restore old files into the new directory
    files.rename(staging, directory)
    files.sync_dir(parent)
    files.sync_dir(staging.rpartition("/")[0])


def fill(context: ReplicaContext, group: TabletId, witness_file: str) -> None:
    """Move the staged files to a witness' directory and remove its file: it has data from then on.

    Args:
        context: context of the process.
        group: group of the witness.
        witness_file: name of the witness' own file.
    """
    files, directory = context.env.files, context.machine_directory(group)
    staging = context.staging_directory(group)
    for name in files.list(staging):
        files.rename(f"{staging}/{name}", f"{directory}/{name}")
    files.sync_dir(directory)
    files.remove(f"{directory}/{witness_file}")
    files.sync_dir(directory)
