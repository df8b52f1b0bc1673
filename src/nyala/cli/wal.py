"""`nyala wal dump`: content of a log or of consensus metadata, even if damaged.

Read-only and without locks; works while the server runs.
"""

import json
import os
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nyala.cli.output import describe_os_error, fail, say, verb

FILE_NAME = "wal.extent"
"""As in nyala.wal.segments.extent, which is imported only when needed."""

if TYPE_CHECKING:
    from nyala.wal.dump import LogDump

app = typer.Typer(no_args_is_help=True, help="Files of a server's write-ahead log.")

DAMAGED, UNREADABLE = 1, 2


class DumpFormat(StrEnum):
    """Format of a dump."""

    TEXT = "text"
    JSON = "json"


@dataclass(slots=True)
class DumpTarget:
    """Content found at a path: a log, consensus metadata by path (an error: as text), or both."""

    log: "LogDump | None"
    cmeta: dict[str, dict[str, Any] | str]

    @property
    def damaged(self) -> bool:
        """Return True if anything is damaged."""
        bad = any(isinstance(one, str) for one in self.cmeta.values())
        return bad or (self.log is not None and self.log.damaged)


@app.callback()
def _group() -> None:
    """Write-ahead log of a server."""


@app.command("dump")
@verb
def dump(
    path: Annotated[
        str, typer.Argument(help="A segment, a wal directory, a data directory, or cmeta files.")
    ],
    how: Annotated[
        DumpFormat, typer.Option("--format", help="Text, or one JSON object.")
    ] = DumpFormat.TEXT,
    group: Annotated[str, typer.Option("--group", help="Show this group's records only.")] = "",
    payloads: Annotated[
        bool, typer.Option("--payloads", help="Show the payloads of entries.")
    ] = False,
) -> None:
    """Print a log with every problem at its position. Exit status 0 intact, 1 damaged, 2 unreadable."""
    from nyala.cli import wal_text
    from nyala.common.errors import BadVersion, InvalidArgument
    from nyala.wal.segments.format import group_bytes

    try:
        if group:
            group_bytes(group)
        found = _find(path)
    except (BadVersion, InvalidArgument) as err:
        raise fail(str(err), UNREADABLE) from None
    except OSError as err:
        raise fail(describe_os_error(err), UNREADABLE) from None
    if how is DumpFormat.JSON:
        print(json.dumps(_as_json(found, group, payloads=payloads), indent=1))
    else:
        if found.log is not None:
            wal_text.print_log(found.log, group, payloads=payloads)
        wal_text.print_cmeta(found.cmeta)
    if found.damaged:
        say("nyala: damage was found")
        raise typer.Exit(DAMAGED)


def _find(path: str) -> DumpTarget:
    """Determine what to dump from the files at the path."""
    from nyala.common.errors import InvalidArgument
    from nyala.env.files import SystemFiles
    from nyala.wal import cmeta
    from nyala.wal.dump import dump_file, dump_log
    from nyala.wal.segments.segment import sequence_of

    files = SystemFiles()
    if os.path.isdir(path):
        home, inside = _home(path), _is_home(path)
        if not inside and (home or any(map(sequence_of, files.list(path)))):
            return DumpTarget(dump_log(files, path, data_dir=home), {})
        folder = f"{path}/cmeta" if inside else path
        metadata = [f"{folder}/{n}" for n in files.list(folder) if _is_group(n)]
        if not inside and not metadata:
            raise InvalidArgument(
                f"{path} holds neither a log nor consensus metadata: name a segment, a wal directory, a data "
                "directory or cmeta files"
            )
        log = dump_log(files, f"{path}/wal", data_dir=path) if inside else None
        return DumpTarget(log, {p: _metadata(files.read(p), p) for p in metadata})
    data = files.read(path, 0, len(cmeta.MAGIC))
    folder, name = os.path.split(os.path.abspath(path))
    if data == cmeta.MAGIC or _is_group(name):
        return DumpTarget(None, {path: _metadata(files.read(path), path)})
    if sequence_of(name) is not None:
        return DumpTarget(dump_log(files, folder, only=name, data_dir=_home(folder)), {})
    return DumpTarget(dump_file(files, path), {})


def _is_home(path: str) -> bool:
    """Return True if a directory is a server's data directory, even a damaged one."""
    return any(os.path.exists(f"{path}/{name}") for name in ("wal", "cmeta", FILE_NAME))


def _home(path: str) -> str | None:
    """Return the data directory of a wal directory; None: none is recorded."""
    above, name = os.path.split(os.path.abspath(path))
    return above if name == "wal" and os.path.exists(f"{above}/{FILE_NAME}") else None


def _is_group(name: str) -> bool:
    return len(name) == 32 and set(name) <= set("0123456789abcdef")


def _metadata(data: bytes, path: str) -> dict[str, Any] | str:
    """Return the content of a consensus metadata file, or its error."""
    import msgspec

    from nyala.common.errors import BadVersion, Corrupt
    from nyala.wal import cmeta

    try:
        owner, hard_state, config = cmeta.inspect(data, path)
        name = os.path.basename(path)
        if _is_group(name) and name != owner:
            return f"{path} belongs to group {owner}"
    except BadVersion:
        raise
    except Corrupt as err:
        return err.message
    return {
        "group": owner, "term": hard_state.term, "vote": hard_state.vote,
        "config": f"{config.id.term}.{config.id.index}",
        "members": [msgspec.to_builtins(m) for m in config.members],
    }  # fmt: skip


def _as_json(found: DumpTarget, group: str, *, payloads: bool) -> dict[str, Any]:
    from nyala.cli.wal_text import fields_of
    from nyala.wal.dump import last_of

    shown: dict[str, Any] = {"damaged": found.damaged}
    if (log := found.log) is not None:
        shown["durable_to"] = {"segment": log.proven.sequence, "offset": log.proven.offset}
        if (extent_file := log.extent_file) is not None:
            must = extent_file.extent
            shown["extent"] = {
                "path": extent_file.path, "damaged": extent_file.damaged, "missing": log.missing,
                "first": must and must.first, "last": must and last_of(must),
                "end": must and {"segment": must.end.sequence, "offset": must.end.offset},
            }  # fmt: skip
        shown["preparing"] = list(log.placeholders)
        shown["segments"] = [
            {
                "path": s.path, "segment": s.sequence, "server": s.server_uuid, "bytes": s.size,
                "used_bytes": s.used, "sealed": s.footer is not None,
                "closed_us": s.footer[0] if s.footer else None,
                "records": [
                    fields_of(r, payloads=payloads) for r in s.records if group in ("", r.group.hex())
                ],
                "problems": [
                    {"offset": p.offset, "length": p.length, "finding": str(p.finding),
                     "check": p.check, "groups": list(p.groups), "certain": p.certain}
                    for p in s.problems
                ],
            }
            for s in log.segments
        ]  # fmt: skip
    if found.cmeta:
        shown["cmeta"] = [
            {"path": path, **({"error": one} if isinstance(one, str) else one)}
            for path, one in found.cmeta.items()
        ]
    return shown
