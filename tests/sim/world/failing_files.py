"""Files of which one operation fails, whichever it is."""

import os
from collections.abc import Callable
from typing import Any

READS = ("read", "map", "list", "size", "exists")


class Failing:
    """Makes the n-th changing file operation fail, before it takes effect or after it did.

    A rename or a sync with an error may have taken effect.

    Args:
        files: a mounted `SimDisk`.
        number: number of the operation, from 1 on.
        error: its errno.
        late: renames, removals and syncs of directories fail after their effect.
        reads: operations that read count too.

    Attributes:
        left: operations until the one that fails; above 0: there were fewer.
        kind: kind of the operation that failed; empty: none did.
    """

    def __init__(
        self, files: Any, number: int, error: int, *, late: bool, reads: bool = False
    ) -> None:
        self.left = number
        self.error = error
        self.kind = ""
        self._late = late
        self._files = files
        self._whole = files._changing
        self._methods = {n: getattr(files, n) for n in ("rename", "sync_dir", "remove")}
        files._changing = self._count
        for name in self._methods if late else ():
            setattr(files, name, self._after(name))
        for name in READS if reads else ():
            self._methods[name] = getattr(files, name)
            setattr(files, name, self._before(name))

    def _count(self, kind: str, path: str, detail: object = "") -> bool:
        self.left -= 1
        if self.left == 0:
            self.kind = kind
            if not (self._late and kind in self._methods):
                raise OSError(self.error, os.strerror(self.error), path)
        return bool(self._whole(kind, path, detail))

    def _after(self, name: str) -> Callable[..., None]:
        def done(*args: str) -> None:
            due = self.left == 1
            self._methods[name](*args)
            if due:
                raise OSError(self.error, os.strerror(self.error), args[0])

        return done

    def _before(self, name: str) -> Callable[..., Any]:
        def read(*args: Any) -> Any:
            self.left -= 1
            if self.left == 0:
                self.kind = name
                raise OSError(self.error, os.strerror(self.error), args[0])
            return self._methods[name](*args)

        return read

    def end(self) -> None:
        """Let everything succeed again."""
        self._files._changing = self._whole
        for name, method in self._methods.items():
            setattr(self._files, name, method)
