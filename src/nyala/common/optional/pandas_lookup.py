"""Arrow's look for pandas, without an import of pandas in programs that do not use it.

At its first conversion of Python values Arrow imports pandas if it is installed, which takes a third of a
second. The look is made here first, and declined unless the program has imported pandas: Arrow then does
without, as if it were not installed. When the program imports pandas later, Arrow looks again. Two threads
that make the first look at the same time disturb each other.
"""

import importlib.util
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from importlib.machinery import ModuleSpec
from types import ModuleType

import pyarrow as pa

PANDAS = "pandas"

_lock = threading.Lock()
_looked = False
_declined = False


def look_for_pandas() -> None:
    """Have Arrow look for pandas before values or frames are converted. Any thread, at each conversion."""
    if PANDAS not in sys.modules:
        if not _declined and not _looked:
            _decline()
    elif not _looked:
        _look()


def look_for_imported_pandas() -> None:
    """As `look_for_pandas`, if this program has imported pandas: Arrow must recognise its frames."""
    if PANDAS in sys.modules:
        look_for_pandas()


class _Finder:
    """Finder of modules that declines one import of pandas, and notes the next one.

    Args:
        thread: identifier of the thread whose import is declined.
    """

    def __init__(self, thread: int) -> None:
        self.thread: int | None = thread

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return pandas as other finders find it; Arrow looks again after its import. None: another module.

        Args:
            name: of the module.
            path: of its package.
            target: the module that is loaded again.
        """
        if name != PANDAS:
            return None
        if self.thread == threading.get_ident():
            raise ModuleNotFoundError("pandas is not imported for Arrow's sake", name=PANDAS)
        with suppress(ValueError):  # another thread has removed it
            sys.meta_path.remove(self)
        spec = importlib.util.find_spec(PANDAS)
        loader = None if spec is None else spec.loader
        if loader is not None:
            execute = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                _look_again()

            with suppress(
                AttributeError
            ):  # a loader without attributes: nyala's conversions look again
                loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _decline() -> None:
    """Make Arrow's first look, and decline the import."""
    global _declined
    with _lock:
        if _declined or _looked:
            return
        finder = _Finder(threading.get_ident())
        sys.meta_path.insert(0, finder)
        try:
            pa.array([0])
        finally:
            finder.thread = None
        _declined = True


def _look() -> None:
    """Make Arrow's first look, or the next one if the first was declined."""
    global _looked
    with _lock:
        if not _declined and not _looked:
            pa.array([0])
            _looked = True
    if not _looked:
        _look_again()


def _look_again() -> None:
    """Have Arrow look again. Without the lock: another thread may hold it and wait for this import."""
    global _looked
    with suppress(ImportError):  # a release of pandas that Arrow does not use
        pa.nulls(0).to_pandas()
    _looked = True
