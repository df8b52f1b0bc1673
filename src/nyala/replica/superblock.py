"""The superblock: one small file per replica with its stage: being created or copied, ready, lost or deleted.

Rules: the only module that packs or unpacks `<dir>/superblock/<group>` (bytes: docs/internals/replica.md).
All calls block (lane DISK); a change is durable on return.
"""

from dataclasses import dataclass
from enum import StrEnum

import google_crc32c
import msgspec

from nyala.common.errors import BadChecksum, Corrupt, newer_version
from nyala.common.ids import NO_OP, OpId, TabletId
from nyala.env.files import UNFINISHED, Files, remove_unfinished
from nyala.raft.membership import UNREADABLE, Member
from nyala.raft.messages import HardState

_NO_VOTE = HardState()

MAGIC = b"NYALSUPR"
FORMAT_VERSION = 1
_HEADER_BYTES = 16
_CRC_BYTES = 4


class ReplicaStage(StrEnum):
    """Stage in the lifecycle of a replica's files."""

    CREATING = "CREATING"
    """Its files are being made; after a crash they are removed, since it never took part."""
    COPYING = "COPYING"
    """A copy of another server's replica is being made; after a crash it has to be made again."""
    LOST = "LOST"
    """Records of it in the log are lost, possibly votes; its files are kept until it is deleted."""
    READY = "READY"
    TOMBSTONED = "TOMBSTONED"
    """Deleted; its vote and last op id are kept."""


@dataclass(frozen=True, slots=True)
class Superblock:
    """Content of a superblock.

    Attributes:
        group: id of the tablet.
        stage: see `ReplicaStage`.
        hard_state: TOMBSTONED: the last term and vote, which outlive the data.
        last: TOMBSTONED: op id of the last entry in its log.
        votes: TOMBSTONED: its vote and last entry are known, so that it may vote.
        members: TOMBSTONED: last known members of its group, for the addresses of candidates.
        lost: LOST: the reason why it can never run again; empty: the log lost records of it.
    """

    group: TabletId
    stage: ReplicaStage
    hard_state: HardState = _NO_VOTE
    last: OpId = NO_OP
    votes: bool = False
    members: tuple[Member, ...] = ()
    lost: str = ""


class Superblocks:
    """The superblocks of one data directory.

    Args:
        files: the file system.
        directory: the data directory.
    """

    def __init__(self, files: Files, directory: str) -> None:
        self._files = files
        self._directory = f"{directory}/superblock"

    def groups(self) -> list[TabletId]:
        """Return the groups that have a superblock, sorted; what is read of them is durable then."""
        names = self._files.list(self._directory)
        if names:
            self._files.sync_dir(self._directory)  # else a power failure could undo it
        return [TabletId(n) for n in names if not n.endswith(UNFINISHED)]

    def remove_unfinished(self) -> None:
        """Remove files that a crash has left unfinished."""
        remove_unfinished(self._files, self._directory)

    def load(self, group: TabletId) -> Superblock | None:
        """Read a superblock; None when there is none.

        Raises:
            BadChecksum, BadVersion, Corrupt: it is damaged or of another format.
        """
        path = self._path(group)
        if not self._files.exists(path):
            return None
        found = decode(self._files.read(path), path)
        if found.group != group:
            raise Corrupt(f"{path} is the superblock of {found.group}; somebody moved files about")
        return found

    def save(self, superblock: Superblock) -> None:
        """Replace a group's superblock; durable on return."""
        self._files.make_dir(self._directory)
        self._files.write_atomic(self._path(superblock.group), encode(superblock))

    def delete(self, group: TabletId) -> None:
        """Remove a superblock, durably; no error if there is none."""
        if self._files.exists(self._path(group)):
            self._files.remove(self._path(group))
            self._files.sync_dir(self._directory)

    def _path(self, group: TabletId) -> str:
        return f"{self._directory}/{group}"


def encode(superblock: Superblock) -> bytes:
    """Return the bytes of a superblock."""
    fields = msgspec.to_builtins(superblock)
    if not superblock.votes:  # only written for a tombstone that votes
        del fields["votes"], fields["members"]
    if not superblock.lost:
        del fields["lost"]
    body = msgspec.json.encode(fields)
    head = MAGIC + FORMAT_VERSION.to_bytes(4, "little") + len(body).to_bytes(4, "little")
    return head + body + int(google_crc32c.value(head + body)).to_bytes(_CRC_BYTES, "little")


def decode(raw: bytes, path: str) -> Superblock:
    """Read the bytes of a superblock.

    Raises:
        BadVersion: another format, or a newer version of this one.
        BadChecksum: damaged.
        Corrupt: the checksum matches and the content is invalid.
    """
    end = len(raw) - _CRC_BYTES
    if end < _HEADER_BYTES or not raw.startswith(MAGIC):
        raise BadChecksum(
            f"{path} is not a superblock, or its beginning is damaged", {"path": path}
        )
    length = int.from_bytes(raw[12:16], "little")
    crc = int.from_bytes(raw[end:], "little")
    if length != end - _HEADER_BYTES or crc != int(google_crc32c.value(raw[:end])):
        raise BadChecksum(
            f"{path} is damaged: its checksum does not match; this replica has to be replaced",
            {"path": path, "offset": "0"},
        )
    version = int.from_bytes(raw[8:12], "little")
    if version != FORMAT_VERSION:
        raise newer_version(path, version, FORMAT_VERSION)
    try:
        return msgspec.json.decode(raw[_HEADER_BYTES:end], type=Superblock)
    except UNREADABLE as err:
        raise Corrupt(f"{path} cannot be understood: {err}") from err
