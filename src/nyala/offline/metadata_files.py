"""Content of a metadata file of a data directory as plain values. Read-only."""

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

import msgspec
import pyarrow as pa

from nyala.common.errors import InvalidArgument
from nyala.common.ids import OpId
from nyala.datadir import instance
from nyala.env.files import Files
from nyala.journal import manifest as journal_manifest
from nyala.replica import superblock
from nyala.tablet.files import manifest
from nyala.tablet.files.file_kind import FileKind
from nyala.wal import cmeta

MAGIC_BYTES = 8


def _consensus(data: bytes, path: str) -> dict[str, Any]:
    group, hard_state, config = cmeta.inspect(data, path)
    return {"group": group, "hard_state": hard_state, "config": config}


KINDS: Mapping[bytes, tuple[str, Callable[[bytes, str], object]]] = {
    instance.MAGIC: ("instance", instance.decode),
    superblock.MAGIC: ("superblock", superblock.decode),
    cmeta.MAGIC: ("consensus metadata", _consensus),
    journal_manifest.MAGIC: ("manifest of a journal", journal_manifest.decode),
    **dict.fromkeys(
        map(bytes, (FileKind.MANIFEST, FileKind.MANIFEST_2, FileKind.MANIFEST_3)),
        ("manifest of a tablet", manifest.decode),
    ),
}
"""Name of the kind, and the decoder, by the first bytes of a file."""


def read(files: Files, path: str) -> dict[str, Any]:
    """Return the kind of a metadata file, its format version and its content.

    Args:
        files: the file system.
        path: of the file.

    Raises:
        InvalidArgument: the file is of no such kind.
        Corrupt, BadVersion: it is damaged, or of a version that this build does not know.
        OSError: it cannot be read.
    """
    known = KINDS.get(files.read(path, 0, MAGIC_BYTES))  # a file of another kind may be very large
    if known is None:
        kinds = ", ".join(dict.fromkeys(name for name, _ in KINDS.values()))
        raise InvalidArgument(
            f"{path} is none of: {kinds}. Logs are read by nyala wal dump, row files by nyala fs check"
        )
    kind, decode = known
    data = files.read(path)
    return {"path": path, "kind": kind, "bytes": len(data), "content": _plain(decode(data, path))}


def _plain(value: object) -> Any:
    """Return a value as dicts, lists, texts and numbers."""
    if isinstance(value, OpId | pa.DataType):
        return str(value)
    if isinstance(value, Enum):
        return value.name
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, msgspec.Struct):
        return {name: _plain(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(one) for one in value]
    return value
