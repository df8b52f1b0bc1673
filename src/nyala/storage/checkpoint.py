"""A checkpoint: the files of one manifest, held so that they can be copied while the state machine goes on.

Rules: taken and released in lane APPLY; the files, which never change, are read in any lane. Holds are
counted in memory: they end with the process, like the sessions that hold them, and when the whole machine is
removed.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Protocol

from nyala.env.files import Files
from nyala.storage.flush_point import StoredFlushPoint


class AnyManifest(Protocol):
    """The small file that names the others of a state machine, and is written last."""

    @property
    def name(self) -> str:
        """Name of the file."""
        ...

    @property
    def flush_point(self) -> StoredFlushPoint:
        """Flush point of the files."""
        ...

    def encode(self) -> bytes:
        """Return the file's bytes."""
        ...

    def file_names(self) -> list[str]:
        """Return the names of all files of the machine, its own included."""
        ...


@dataclass(frozen=True, slots=True)
class HeldFile:
    """One file of a checkpoint.

    Attributes:
        name: in the machine's directory.
        size_bytes: its length.
    """

    name: str
    size_bytes: int


class Holds:
    """Reference counts of the files that checkpoints hold. Lane APPLY."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    @property
    def names(self) -> Collection[str]:
        """Names of the files held."""
        return self._counts.keys()

    def add(self, names: Iterable[str]) -> None:
        """Hold some files once more."""
        self._counts.update(names)

    def drop(self, names: Iterable[str]) -> list[str]:
        """Drop one reference to each; return the files without any."""
        free = []
        for name in names:
            self._counts[name] -= 1
            assert self._counts[name] >= 0, f"{name} is dropped more often than it was held"
            if not self._counts[name]:
                del self._counts[name]
                free.append(name)
        return free


class Checkpoint:
    """The files of a copy of a state machine, and `manifest_bytes`, written last under `manifest_name`.

    They exist until `release`, whatever the machine does meanwhile. The copy opens as the machine did at
    `flush_point`, and replays the group's log from there.

    Args:
        files: the file system.
        directory: directory of the machine.
        now: returns the machine's current manifest.
        holds: the machine's holds on its files.

    Attributes:
        manifest_name: name of the file that is written last.
        manifest_bytes: content of the copy's manifest; the machine's own is replaced by its next flush.
        flush_point: position in the log that the files represent.
        files: all others that the manifest names, in its order.
    """

    def __init__(
        self, files: Files, directory: str, now: Callable[[], AnyManifest], holds: Holds
    ) -> None:
        current = now()
        names = [n for n in current.file_names() if n != current.name]
        self.manifest_name = current.name
        self.manifest_bytes = current.encode()
        self.flush_point: StoredFlushPoint = current.flush_point
        self.files = tuple(HeldFile(n, files.size(f"{directory}/{n}")) for n in names)
        self._files = files
        self._directory = directory
        self._now = now
        self._holds = holds
        self._held: tuple[str, ...] = tuple(names)
        holds.add(names)

    def release(self) -> None:
        """Release the files, and remove those without a reference; idempotent."""
        referenced = set(self._now().file_names())
        held, self._held = self._held, ()
        for name in self._holds.drop(held):
            if name not in referenced:
                self._files.remove(f"{self._directory}/{name}")
