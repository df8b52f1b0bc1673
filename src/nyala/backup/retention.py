"""Removal of old chains of backups."""

from dataclasses import dataclass
from pathlib import Path

from nyala.backup.chain import chain_names, newest_chain, note_latest
from nyala.backup.folders import in_use, locked, remove_element, remove_unfinished, table_folder
from nyala.backup.manifest import time_of
from nyala.common.errors import InvalidArgument


@dataclass(frozen=True, slots=True)
class Removed:
    """A removed chain.

    Attributes:
        elements: their ids, in order of time.
        bytes: size of its files.
    """

    elements: tuple[str, ...]
    bytes: int


def prune(
    root: Path, table: str, *, keep: int | None = None, before: int | None = None, dry_run: bool = False
) -> list[Removed]:  # fmt: skip
    """Remove whole chains of a table, the oldest first, and what an unfinished backup left.

    The newest chain always stays. A chain is removed from its end to its beginning, so that after a crash
    the rest of it can be restored, and is removed by the next call. Damaged chains are removed too.

    Args:
        root: folder of the backups.
        table: name of the table.
        keep: number of chains that stay; None: not limited by number.
        before: hybrid time: a chain is removed if the next one begins at or before it.
        dry_run: remove nothing.

    Returns:
        The removed chains.

    Raises:
        InvalidArgument: neither `keep` nor `before` is given, or `keep` is below 1.
        Corrupt: the newest chain is damaged; nothing was removed.
        Unavailable: another process works on these backups, or restores from them.
    """
    if keep is None and before is None:
        raise InvalidArgument(
            "nothing says which backups may be removed; give a number of chains to keep, or a time"
        )
    if keep is not None and keep < 1:
        raise InvalidArgument(f"keep={keep}: at least the newest chain stays; give 1 or more")
    chain_names(root, table)
    folder = table_folder(root, table)
    with locked(folder):
        newest = newest_chain(root, table).elements[-1]
        chains = chain_names(root, table)
        gone = []
        for number, names in enumerate(chains[:-1]):
            enough = keep is None or len(chains) - number > keep
            old = before is None or time_of(chains[number + 1][0]) <= before
            if enough and old:
                gone.append(names)
        found = [
            Removed(tuple(names), sum(map(_size, (folder / n for n in names)))) for names in gone
        ]
        if not dry_run:
            with in_use(folder, by_removal=True):
                note_latest(folder, newest)
                for name in (n for names in gone for n in reversed(names)):
                    remove_element(folder / name)
                kept = next(names[0] for names in chains if names not in gone)
                remove_unfinished(folder, kept)
        return found


def _size(element: Path) -> int:
    """Return the bytes of the files of an element."""
    return sum(p.stat().st_size for p in element.iterdir() if p.is_file())
