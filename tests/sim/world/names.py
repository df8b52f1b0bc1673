"""Names of simulated files: directories, and changes to them that a power failure undoes."""

import random
from dataclasses import dataclass
from posixpath import dirname

from tests.sim.world.inode import Inode

Tree = dict[str, dict[str, Inode]]


@dataclass(slots=True)
class _Change:
    """Set names (None: remove) in directories; `drop` removes a directory, `move` moves one."""

    names: tuple[tuple[str, str, Inode | None], ...]
    drop: str | None = None
    move: tuple[str, str] | None = None

    @property
    def directories(self) -> set[str]:
        touched = {directory for directory, _, _ in self.names}
        for directory in (self.drop, *(self.move or ())):
            if directory is not None:
                touched |= {directory, dirname(directory)}
        return touched


class Names:
    """The directory tree as seen by processes, and as durable on the disk."""

    def __init__(self) -> None:
        self.seen: Tree = {"": {}, "/": {}}
        self._durable: Tree = {"": {}, "/": {}}
        self._changes: list[_Change] = []
        self._found: dict[Inode, tuple[str, str]] = {}

    def durable(self, inode: Inode) -> bool:
        """Return whether a file has a name, not of a temporary file, that survives a power cut."""
        directory, name = self._found.get(inode, ("", ""))
        if name and self._durable.get(directory, {}).get(name) is inode:
            return True
        for directory, names in self._durable.items():
            for name, other in names.items():
                if other is inode and not name.endswith((".new", ".tmp")):
                    self._found[inode] = directory, name
                    return True
        return False

    def place(self, inode: Inode) -> str:
        """Return the path of a file that survives a power cut; empty: see `durable`."""
        return "/".join(self._found[inode]) if self.durable(inode) else ""

    def get(self, path: str) -> Inode | None:
        """Return the file of a path, or None."""
        directory, name = split(path)
        return self.seen.get(directory, {}).get(name)

    def make_dir(self, path: str) -> None:
        """Make a directory and its parents, durable at once, with other changes of their parents."""
        while path not in self.seen:
            self.sync(dirname(path))
            self.seen[path] = {}
            self._durable.setdefault(path, {})
            path = dirname(path)

    def link(self, path: str, inode: Inode) -> None:
        """Create a name."""
        directory, name = split(path)
        self._change(_Change(((directory, name, inode),)))

    def unlink(self, path: str) -> None:
        """Remove a name."""
        directory, name = split(path)
        self._change(_Change(((directory, name, None),)))

    def rename(self, source: str, target: str) -> None:
        """Move a name, over another if it is there."""
        (old_dir, old), (new_dir, new) = split(source), split(target)
        inode = self.seen[old_dir][old]
        self._change(_Change(((new_dir, new, inode), (old_dir, old, None))))

    def rename_dir(self, source: str, target: str) -> None:
        """Move a directory with all in it."""
        self._change(_Change((), move=(source, target)))

    def drop(self, path: str) -> None:
        """Remove a directory and all in it."""
        inside = [d for d in self.seen if d == path or d.startswith(path + "/")]
        for directory in sorted(inside, reverse=True):
            for name in sorted(self.seen[directory]):
                self._change(_Change(((directory, name, None),)))
            self._change(_Change((), directory))

    def sync(self, directory: str) -> None:
        """Make the changes in a directory durable, and those elsewhere that they depend on."""
        moved = [c.move[1] for c in self._changes if c.move is not None]
        assert directory not in moved, f"{directory} was moved, and its parent is not synced yet"
        wanted, synced = {directory}, []
        for change in reversed(self._changes):
            if change.directories & wanted:
                wanted |= change.directories
                synced.append(change)
        for change in reversed(synced):
            _apply(self._durable, change)
        kept = {id(c) for c in synced}
        self._changes = [c for c in self._changes if id(c) not in kept]

    def crash(self, rng: random.Random) -> int:
        """Keep a random prefix of each directory's unsynced changes; return the number of lost ones."""
        keep = rng.choice((0.0, 0.5, 0.9, 1.0))
        cut: set[str] = set()
        undone = 0
        for change in self._changes:
            if change.directories & cut or rng.random() >= keep:
                cut |= change.directories
                undone += 1
            else:
                _apply(self._durable, change)
        self._changes = []
        self.seen = {directory: dict(names) for directory, names in self._durable.items()}
        return undone

    def put_back(self, tree: Tree) -> None:
        """Replace the content by this tree, all of it durable."""
        self.seen = {directory: dict(names) for directory, names in tree.items()}
        self._durable = {directory: dict(names) for directory, names in tree.items()}
        self._changes = []
        self._found = {}

    def _change(self, change: _Change) -> None:
        self._changes.append(change)
        _apply(self.seen, change)


def split(path: str) -> tuple[str, str]:
    """Return (directory, name) of a path."""
    directory, _, name = path.rpartition("/")
    return directory or ("/" if path.startswith("/") else ""), name


def _apply(tree: Tree, change: _Change) -> None:
    for directory, name, inode in change.names:
        if inode is None:
            tree.get(directory, {}).pop(name, None)
        elif directory in tree:
            tree[directory][name] = inode
    if change.drop is not None:
        tree.pop(change.drop, None)
    if change.move is not None:
        source, target = change.move
        for directory in sorted(tree):
            if directory == source or directory.startswith(source + "/"):
                tree[target + directory[len(source) :]] = tree.pop(directory)
