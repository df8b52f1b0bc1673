"""Files of a journal: reading them at the start, and replacing them by a flush or a merge.

Lanes: builds in COMPUTE, installs in APPLY, the rest anywhere.
"""

from collections.abc import Callable
from contextlib import suppress
from itertools import groupby
from operator import attrgetter

from nyala.env.files import Files
from nyala.journal import manifest
from nyala.journal.data_file import DataFile, LogRecord
from nyala.journal.entries import Entries
from nyala.journal.keys import KeyValue
from nyala.journal.log import NamedLog
from nyala.journal.manifest import JournalManifest, data_name
from nyala.storage.checkpoint import Checkpoint, Holds

Install = Callable[[], None]
Build = Callable[[], Install]


class JournalFiles:
    """The data files of one journal and the manifest that names them; one replacement at a time.

    Args:
        files: the file system.
        directory: directory of the journal.
        current: its manifest.

    Attributes:
        manifest: the durable manifest.
        busy: a flush or a merge is under way.
    """

    def __init__(self, files: Files, directory: str, current: JournalManifest) -> None:
        self.manifest = current
        self.busy = False
        self._files = files
        self._directory = directory
        self._holds = Holds()
        self._next_file = current.next_file
        self._sizes = {n: files.size(self.path(n)) for n in current.files}

    @property
    def sizes(self) -> list[int]:
        """Sizes of the data files in bytes, oldest first."""
        sizes = self._sizes
        return [sizes.get(n, 0) for n in self.manifest.files]

    def path(self, number: int) -> str:
        """Return the path of a data file."""
        return f"{self._directory}/{data_name(number)}"

    def new_number(self) -> int:
        """Return the number of a new data file."""
        self._next_file += 1
        return self._next_file - 1

    @property
    def next_number(self) -> int:
        """A number above those of all data files, for the next manifest."""
        return self._next_file

    def replacement(
        self,
        write: Callable[[], dict[int, int]],
        after: JournalManifest,
        installed: Callable[[], None],
    ) -> Build:
        """Return the build of new files, whose install switches to another manifest.

        Args:
            write: writes the new data files; returns their sizes in bytes by number.
            after: manifest that names them.
            installed: called when that manifest is durable.
        """
        self.busy = True

        def build() -> Install:
            done = False
            try:
                sizes = write()
                self._files.sync_dir(self._directory)
                done = True
            except Exception:  # raised again
                self._discard(after)
                raise
            finally:
                self.busy = done
            return lambda: self._install(after, sizes, installed)

        return build

    def _install(
        self, after: JournalManifest, sizes: dict[int, int], installed: Callable[[], None]
    ) -> None:
        try:
            manifest.save(self._files, self._directory, after)
        except OSError:  # raised again; a restart may find the new manifest only if it is there now
            with suppress(OSError):
                if not manifest.is_saved(self._files, self._directory, after):
                    self._discard(after)
            raise
        finally:
            self.busy = False
        self.manifest = after
        self._sizes = {n: s for n, s in (self._sizes | sizes).items() if n in after.files}
        installed()
        manifest.remove_unreferenced(self._files, self._directory, after, self._holds.names)

    def _discard(self, after: JournalManifest) -> None:
        """Remove the new files of work that failed: it is tried again, and would fill the disk with them."""
        for number in {*after.files} - {*self.manifest.files}:
            with suppress(OSError):  # the next install, or the next start, removes it
                self._files.remove(self.path(number))

    def checkpoint(self) -> Checkpoint:
        """Hold the files that make the journal at its flush point, for a copy of them."""
        return Checkpoint(self._files, self._directory, lambda: self.manifest, self._holds)

    def read(self) -> tuple[list[NamedLog], list[KeyValue]]:
        """Return the logs and keys that are valid as of the flush point.

        Raises:
            Corrupt: a file is damaged.
        """
        logs: dict[int, LogRecord] = {}
        entries: dict[int, Entries] = {}
        keys: dict[str, KeyValue] = {}
        for number in self.manifest.files:
            one = DataFile(self._files, self.path(number))
            for created in one.dropped:
                logs.pop(created, None)
                entries.pop(created, None)
            for log in one.logs:
                logs[log.created] = log
                entries.setdefault(log.created, Entries())
            for created, entry_id in one.invalid:
                entries[created].invalidate(entry_id)
            for created, parts in groupby(one.parts(), attrgetter("log")):
                entries[created].extend((p.ids, p.lengths, memoryview(p.data)) for p in parts)
            for key in one.all_keys():
                keys.pop(key.key, None)
                if isinstance(key, KeyValue):
                    keys[key.key] = key
            one.check()
        made = [NamedLog(r.name, r.created, r.last, entries[c]) for c, r in logs.items()]
        return made, list(keys.values())
