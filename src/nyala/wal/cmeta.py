"""Consensus metadata: one file per group with the committed configuration, the term and the vote.

Layout: docs/internals/formats-wal.md. The log has newer terms and votes; these files keep the members after
the log's CONFIG entries are collected, and the vote of a deleted replica.
"""

from struct import Struct

import google_crc32c
import msgspec

from nyala.common.errors import BadChecksum, newer_version
from nyala.common.ids import OpId, ServerUuid, TabletId
from nyala.env.files import Files, remove_unfinished
from nyala.raft import membership
from nyala.raft.membership import Configuration
from nyala.raft.messages import HardState

MAGIC = b"NYALACME"
VERSION = 1
_HEADER = Struct("<8sIII")


class _Content(msgspec.Struct, frozen=True):
    group: str
    term: int
    vote: str | None
    config_term: int
    config_index: int
    members: msgspec.Raw


def encode(group: TabletId, hard_state: HardState, config: Configuration) -> bytes:
    """Return the bytes of a group's file.

    Args:
        group: id of the Raft group.
        hard_state: term and vote.
        config: the committed configuration.
    """
    members = msgspec.Raw(membership.encode(config))
    content = _Content(
        group, hard_state.term, hard_state.vote, config.id.term, config.id.index, members
    )
    payload = msgspec.json.encode(content)
    head = _HEADER.pack(MAGIC, VERSION, len(payload), 0)[:-4]
    return head + int(google_crc32c.value(head + payload)).to_bytes(4, "little") + payload


def decode(group: TabletId, data: bytes, path: str) -> tuple[HardState, Configuration]:
    """Return the hard state and the configuration in a group's file.

    Args:
        group: expected id of the Raft group.
        data: content of the file.
        path: path of the file, for error messages.

    Raises:
        BadChecksum: damaged, truncated, of another group, or its members are invalid. BadVersion: of an
            unknown format.
    """
    owner, hard_state, config = inspect(data, path)
    if owner != group:
        raise BadChecksum(f"{path} belongs to group {owner}", {"path": path, "offset": "0"})
    return hard_state, config


def inspect(data: bytes, path: str) -> tuple[TabletId, HardState, Configuration]:
    """Return the group, hard state and configuration of a file. Raises as `decode`."""
    where = {"path": path, "offset": "0"}
    if len(data) >= _HEADER.size:
        magic, version, length, crc = _HEADER.unpack_from(data)
        payload = data[_HEADER.size :]
        whole = magic == MAGIC and len(payload) == length
        if whole and crc == google_crc32c.value(data[: _HEADER.size - 4] + payload):
            if version != VERSION:
                raise newer_version(path, version, VERSION)
            try:
                return _content(payload)
            except membership.UNREADABLE as err:
                raise BadChecksum(
                    f"{path}: the consensus metadata is invalid: {err}; this replica has to be "
                    "replaced",
                    where,
                ) from err
    raise BadChecksum(
        f"{path}: the consensus metadata is damaged; this replica has to be replaced", where
    )


def _content(payload: bytes) -> tuple[TabletId, HardState, Configuration]:
    content = msgspec.json.decode(payload, type=_Content)
    vote = None if content.vote is None else ServerUuid(content.vote)
    at = OpId(content.config_term, content.config_index)
    config = membership.decode(bytes(content.members), at)
    return TabletId(content.group), HardState(content.term, vote), config


class ConsensusMetadata:
    """The files `<directory>/cmeta/<group>`. All calls block; use lane DISK.

    Args:
        files: the file system.
        directory: the data directory.
    """

    def __init__(self, files: Files, directory: str) -> None:
        self._files = files
        self._directory = f"{directory}/cmeta"

    def load(self, group: TabletId) -> tuple[HardState, Configuration] | None:
        """Return the saved hard state and configuration; None: there is no file.

        Raises:
            BadChecksum, BadVersion: as `decode`. OSError.
        """
        path = self._path(group)
        return decode(group, self._files.read(path), path) if self._files.exists(path) else None

    def save(self, group: TabletId, hard_state: HardState, config: Configuration) -> None:
        """Replace a group's file atomically; durable on return.

        Args:
            group: id of the Raft group.
            hard_state: term and vote.
            config: the committed configuration.

        Raises:
            OSError: the old file is still in place.
        """
        self._files.make_dir(self._directory)
        self._files.write_atomic(self._path(group), encode(group, hard_state, config))

    def delete(self, group: TabletId) -> None:
        """Remove a group's file, durably; no error if it is not there."""
        if self._files.exists(self._path(group)):
            self._files.remove(self._path(group))
            self._files.sync_dir(self._directory)

    def groups(self) -> list[TabletId]:
        """Return the groups that have a file, sorted; the files are durable on return."""
        names = self._files.list(self._directory)
        if names:
            self._files.sync_dir(self._directory)  # a power failure could undo what was read
        return [TabletId(n) for n in names if "." not in n]

    def remove_unfinished(self) -> None:
        """Remove files that a crash has left unfinished."""
        remove_unfinished(self._files, self._directory)

    def _path(self, group: TabletId) -> str:
        return f"{self._directory}/{group}"
