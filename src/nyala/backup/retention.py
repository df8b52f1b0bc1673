"""Removal of old chains of backups."""

from pathlib import Path

from nyala.backup.chain import Chain, chains_of
from nyala.backup.folders import locked, remove_element, remove_unfinished, table_folder
from nyala.common.errors import InvalidArgument


def prune(
    root: Path, table: str, *, keep: int | None = None, before: int | None = None, dry_run: bool = False
) -> list[Chain]:  # fmt: skip
    """Remove whole chains of a table, the oldest first, and what an unfinished backup left.

    The newest chain always stays. A chain is removed from its end to its beginning, so that after a crash
    the rest of it can be restored, and is removed by the next call.

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
        Unavailable: another process works on these backups.
    """
    if keep is None and before is None:
        raise InvalidArgument(
            "nothing says which backups may be removed; give a number of chains to keep, or a time"
        )
    if keep is not None and keep < 1:
        raise InvalidArgument(f"keep={keep}: at least the newest chain stays; give 1 or more")
    chains_of(root, table)
    folder = table_folder(root, table)
    with locked(folder):
        chains = chains_of(root, table)
        gone = []
        for number, chain in enumerate(chains[:-1]):
            enough = keep is None or len(chains) - number > keep
            old = before is None or chains[number + 1].since <= before
            if enough and old:
                gone.append(chain)
        if not dry_run:
            for chain in gone:
                for element in reversed(chain.elements):
                    remove_element(folder / element.id)
            remove_unfinished(folder)
        return gone
