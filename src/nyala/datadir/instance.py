"""The `instance` file: the owner of a data directory, and the lock that excludes a second process.

Rules: the only module that packs or unpacks `instance` (docs/internals/master.md shows its bytes).
Blocking calls, made once at start, before any other access to the directory.
"""

import logging
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import google_crc32c
import msgspec

from nyala.common.errors import (
    BadChecksum,
    BadVersion,
    Corrupt,
    Forbidden,
    InvalidArgument,
    newer_or_damaged,
    newer_version,
)
from nyala.common.ids import ServerUuid
from nyala.env.clock import random_id
from nyala.env.files import UNFINISHED, Files

log = logging.getLogger(__name__)

MAGIC = b"NYALINST"
FORMAT_VERSION = 2
"""Version of everything in a data directory, incremented when a build writes what earlier ones cannot read. A
server that starts writes it here first, so that an earlier build refuses the whole directory (S0.87)."""
OLDEST_FORMAT = 1
FILE_NAME = "instance"
LOCK_NAME = "lock"
_HEADER_BYTES = len(MAGIC) + 4 + 4
_CRC_BYTES = 4
KEPT_LISTS = 16
"""Number of earlier lists of masters that are kept."""


@dataclass(frozen=True, slots=True)
class Instance:
    """Content of the `instance` file.

    Attributes:
        uuid: the server's permanent id.
        role: "master" or "tserver"; a directory never changes it.
        cluster_id: empty until the server has received it from a master.
        initialised: the server's first start was completed (masters: the sys catalog exists here).
        replaces: it has the uuid of a dead server, and must not start empty: its replicas have to be copied
            first.
        masters: earlier and present lists of the masters' public addresses, the latest last.
    """

    uuid: ServerUuid
    role: str
    cluster_id: str = ""
    initialised: bool = False
    replaces: bool = False
    masters: tuple[tuple[str, ...], ...] = ()


def open_instance(files: Files, directory: str, role: str, rng: random.Random) -> Instance:
    """Lock a data directory and return its instance; format it when it is empty.

    Durable on return. The lock lasts for the life of this process. An earlier format is raised to this one.

    Args:
        files: the file system.
        directory: the data directory; created if it does not exist.
        role: "master" or "tserver".
        rng: makes the uuid of a new server.

    Raises:
        Forbidden: a running process has locked the directory.
        InvalidArgument: the directory belongs to a server of another role, or contains other files.
        Corrupt: the instance file is damaged, or of a version that this build does not know.
    """
    files.make_dir(directory)
    if not files.lock(f"{directory}/{LOCK_NAME}"):
        raise Forbidden(
            f"the data directory {directory} is in use by a running process; stop that server first, "
            "or give this one a directory of its own"
        )
    path = f"{directory}/{FILE_NAME}"
    if files.exists(path):
        raw = files.read(path)
        found = decode(raw, path)
        files.sync_dir(directory)  # else a power failure could undo it after it was read
        if found.role != role:
            raise InvalidArgument(
                f"the data directory {directory} belongs to a {found.role} ({found.uuid}), and this "
                f"process is a {role}; give it a directory of its own"
            )
        if (version := _version_of(raw)) < FORMAT_VERSION:
            files.write_atomic(path, encode(found))
            log.info(
                "%s is upgraded from format %d to %d: earlier builds refuse it from now on",
                directory, version, FORMAT_VERSION,
            )  # fmt: skip
        return found
    others = [n for n in files.list(directory) if n not in (LOCK_NAME, FILE_NAME + UNFINISHED)]
    if others:
        raise InvalidArgument(
            f"the directory {directory} has no instance file but is not empty (it holds {others[0]}); "
            f"a new {role} needs an empty directory"
        )
    made = Instance(ServerUuid(random_id(rng)), role)
    files.write_atomic(path, encode(made))
    return made


def format_instance(
    files: Files, directory: str, role: str, uuid: ServerUuid, *, replaces: bool
) -> tuple[Instance, bool]:
    """Format an empty directory for a server with this uuid; durable on return.

    Args:
        files: the file system.
        directory: the data directory; made when it is not there.
        role: "master" or "tserver".
        uuid: uuid of the server.
        replaces: it replaces a dead server: its replicas have to be copied first.

    Returns:
        The instance, and whether it is new; a directory that has this instance already is not changed.

    Raises:
        InvalidArgument: the directory is not empty. Forbidden: a running process has locked it. Corrupt: see
            `decode`.
    """
    path = f"{directory}/{FILE_NAME}"
    found = decode(files.read(path), path) if files.exists(path) else None
    known = (FILE_NAME, FILE_NAME + UNFINISHED, LOCK_NAME)
    others = [n for n in files.list(directory) if n not in known] if files.exists(directory) else []
    made = Instance(uuid, role, replaces=replaces)
    if others or found not in (None, made):
        what = others[0] if found is None else f"the {found.role} {found.uuid}"
        raise InvalidArgument(
            f"the directory {directory} is not empty (it holds {what}); only an empty one is formatted: "
            "choose another one, or remove its content if it is not needed"
        )
    files.make_dir(directory)
    if not files.lock(f"{directory}/{LOCK_NAME}"):
        raise Forbidden(f"the data directory {directory} is in use by a running process")
    if found is None:
        files.write_atomic(path, encode(made))
    return made, found is None


def update(
    files: Files,
    directory: str,
    instance: Instance,
    *,
    cluster_id: str | None = None,
    initialised: bool = False,
    masters: Sequence[str] = (),
) -> Instance:
    """Rewrite the instance file with new values; durable on return.

    Args:
        files: the file system.
        directory: the data directory, locked by this process.
        instance: present content of the file.
        cluster_id: as named by a master; None: unchanged.
        initialised: True marks the first start as completed, permanently.
        masters: present public addresses of all masters; empty: not known.

    Raises:
        InvalidArgument: the directory belongs to another cluster.
    """
    if cluster_id is not None and instance.cluster_id not in ("", cluster_id):
        raise InvalidArgument(
            f"the data directory {directory} belongs to cluster {instance.cluster_id}, not to "
            f"{cluster_id}; start the server with the masters of its own cluster, or with an empty "
            "directory"
        )
    lists, latest = instance.masters, tuple(sorted(masters))
    if latest and latest != (lists[-1] if lists else ()):
        lists = (*(known for known in lists if known != latest), latest)[-KEPT_LISTS:]
    changed = replace(
        instance,
        cluster_id=instance.cluster_id if cluster_id is None else cluster_id,
        initialised=instance.initialised or initialised,
        masters=lists,
    )
    if changed != instance:
        files.write_atomic(f"{directory}/{FILE_NAME}", encode(changed))
    return changed


def encode(instance: Instance) -> bytes:
    """Return the bytes of an instance file."""
    body = msgspec.json.encode(instance)
    head = MAGIC + FORMAT_VERSION.to_bytes(4, "little") + len(body).to_bytes(4, "little")
    crc = int(google_crc32c.value(head + body))
    return head + body + crc.to_bytes(_CRC_BYTES, "little")


def _version_of(raw: bytes) -> int:
    return int.from_bytes(raw[8:12], "little")


def decode(raw: bytes, path: str) -> Instance:
    """Read the bytes of an instance file.

    Raises:
        BadVersion: another format, or a newer version of this one.
        BadChecksum: damaged.
        Corrupt: the checksum matches and the content is invalid.
    """
    if len(raw) < _HEADER_BYTES + _CRC_BYTES or not raw.startswith(MAGIC):
        raise BadVersion(f"{path} is not an instance file of nyala")
    version = _version_of(raw)
    length = int.from_bytes(raw[12:16], "little")
    end = _HEADER_BYTES + length
    crc = int.from_bytes(raw[end : end + _CRC_BYTES], "little")
    whole = len(raw) == end + _CRC_BYTES and crc == int(google_crc32c.value(raw[:end]))
    if not OLDEST_FORMAT <= version <= FORMAT_VERSION:
        what = f"{path}, and with it this data directory,"
        if whole:
            raise newer_version(what, version, FORMAT_VERSION)
        mend = "restore the file from a backup of the directory"
        raise newer_or_damaged(what, version, FORMAT_VERSION, mend)
    if not whole:
        raise BadChecksum(
            f"{path} is damaged: its checksum does not match; restore it from a backup of the directory",
            {"path": path, "offset": "0"},
        )
    try:
        return msgspec.json.decode(raw[_HEADER_BYTES:end], type=Instance)
    except msgspec.MsgspecError as err:
        raise Corrupt(f"{path} cannot be understood: {err}") from err
