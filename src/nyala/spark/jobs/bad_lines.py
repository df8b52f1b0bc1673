"""Folder of the bad lines of an import: a file for each input file that has some, and the import they are of.

The folder belongs to one operation: an import with a `job_id`, or a run of stand-by drivers. A driver that
goes on with the operation goes on with its files: each of them is replaced as a whole, or removed.
"""

import json
import re
from collections.abc import Collection, Sequence
from dataclasses import asdict
from pathlib import Path

from nyala.backup.folders import put, whole_file
from nyala.common.errors import InvalidArgument
from nyala.spark.jobs.text_lines import BadLine

OWNER = ".operation"
"""Name of the file with the id of the operation."""
ENDING = ".bad.jsonl"
_OWN = re.compile(r"\.?\d{5,}-.*\.bad\.jsonl(\.[0-9a-f]{16}\.tmp)?", re.DOTALL)
"""Names of the files of bad lines, and of those that tries of tasks have begun."""


def checked_folder(bad: str, operation: str) -> str:
    """Return the absolute path of a folder that is absent or empty, or belongs to the operation.

    Args:
        bad: path; empty: none.
        operation: id; empty: none.

    Raises:
        InvalidArgument: it is no folder, or has files of others.
    """
    if not bad:
        return ""
    folder = Path(bad).absolute()
    if not folder.exists():
        return str(folder)
    if not folder.is_dir():
        raise InvalidArgument(f"{bad} is not a folder; name an empty one for the bad lines")
    owner = folder / OWNER
    if owner.is_file() and operation and owner.read_text(encoding="utf-8") == operation:
        return str(folder)
    if any(not p.name.startswith(f".{OWNER}.") for p in folder.iterdir()):
        raise InvalidArgument(
            f"{bad} is not an empty folder, and its files are not of this import; name another one for the "
            "bad lines. An import that ended early goes on with its own folder if it has --job-id, or "
            "--standby and the same arguments"
        )
    return str(folder)


def begin(folder: str, operation: str) -> None:
    """Create the folder, and note the operation that it belongs to.

    Args:
        folder: path.
        operation: id; empty: none.
    """
    Path(folder).mkdir(parents=True, exist_ok=True)
    owner = Path(folder) / OWNER
    if operation and not owner.exists():
        put(owner, operation)


def file_name(number: int, path: str) -> str:
    """Return the name of the file of bad lines of an input file.

    Args:
        number: of the input file in the import.
        path: of the input file.
    """
    return f"{number:05d}-{Path(path).name}{ENDING}"


def replace_lines(folder: str, number: int, path: str, lines: Sequence[BadLine]) -> None:
    """Write the bad lines of an input file, in place of those of an earlier try of its task.

    Args:
        folder: of the bad lines.
        number: of the input file in the import.
        path: of the input file.
        lines: its bad lines; none: there is no file.
    """
    target = Path(folder) / file_name(number, path)
    if not lines:
        target.unlink(missing_ok=True)
        return
    with whole_file(target) as out:
        for line in lines:
            text = json.dumps({"file": path, **asdict(line)}, ensure_ascii=False)
            out.write(f"{text}\n".encode())


def remove_others(folder: str, names: Collection[str]) -> None:
    """Remove what an earlier driver of the operation has left of files that are not imported any more.

    Args:
        folder: of the bad lines.
        names: of the files of bad lines of this import.
    """
    for path in Path(folder).iterdir():
        if path.name not in names and _OWN.fullmatch(path.name):
            path.unlink(missing_ok=True)


def count_lines(folder: str) -> int:
    """Return the number of bad lines in the folder."""
    return sum(p.read_bytes().count(b"\n") for p in Path(folder).glob(f"*{ENDING}"))
