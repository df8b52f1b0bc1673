"""Unreadable pages of mapped files: the file was truncated, or its disk has a bad sector.

The kernel raises SIGBUS in the thread that accesses the page, which by default ends the process. Here a
handler maps a page of zeros in its place and records the offset; users of a map call `unreadable_offset`
before they return results. A SIGBUS elsewhere ends the process as usual. Linux only; on other systems maps
are not guarded.
"""

import ctypes
import mmap
import signal
import sys
import threading
import weakref
from typing import Any

_SI_ADDR = 16
"""Offset of the faulting address in Linux's 64-bit `siginfo_t`."""
_SA_SIGINFO = 4
_MAP_FIXED = 0x10
_FAILED = ctypes.c_void_p(-1).value
_HANDLER = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


class _Action(ctypes.Structure):
    """glibc's `struct sigaction`: `sigset_t` has 1024 bits."""

    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_uint64 * 16),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


class Guard:
    """The mapped files of this process. Thread-safe.

    Attributes:
        intact: every accessed page of every file could be read so far.
    """

    def __init__(self) -> None:
        self.intact = True
        self._ends: dict[int, int] = {}  # end of each mapping, by its first address
        self._lost: dict[int, int] = {}  # offset of the first unreadable page of each mapping
        self._handler = _HANDLER(self._fault)  # referenced here because the kernel has its address
        self._before = _Action()
        self._libc: Any = None
        self._lock = threading.Lock()

    def add(self, mapped: mmap.mmap, view: memoryview) -> None:
        """Guard a mapping until it is freed."""
        if not sys.platform.startswith("linux") or sys.maxsize < 1 << 32:
            return
        with self._lock:
            if self._libc is None:
                self._install()
        start = _address(view)
        self._ends[start] = start + len(view)
        weakref.finalize(mapped, self._forget, start).atexit = False

    def unreadable_offset(self, view: memoryview) -> int | None:
        """Return the offset of an unreadable page of a mapping; None: none so far."""
        return None if self.intact else self._lost.get(_address(view))

    def _forget(self, start: int) -> None:
        self._ends.pop(start, None)
        self._lost.pop(start, None)

    def _install(self) -> None:
        libc = ctypes.PyDLL(None)  # holds the GIL, so nothing runs in between
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = (
            ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long,
        )  # fmt: skip
        action = _Action(ctypes.cast(self._handler, ctypes.c_void_p), flags=_SA_SIGINFO)
        done = libc.sigaction(signal.SIGBUS, ctypes.byref(action), ctypes.byref(self._before))
        assert done == 0, "sigaction takes SIGBUS"
        self._libc = libc

    def _fault(self, _signal: int, info: int, _context: int) -> None:
        """Handle SIGBUS, in the thread that raised it."""
        address = ctypes.c_uint64.from_address(info + _SI_ADDR).value
        page = address & -mmap.PAGESIZE
        for start, end in list(self._ends.items()):
            if start <= address < end + mmap.PAGESIZE:
                private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED
                made = self._libc.mmap(page, mmap.PAGESIZE, mmap.PROT_READ, private, -1, 0)
                if made != _FAILED:
                    self._lost.setdefault(start, page - start)
                    self.intact = False
                    return
        self._libc.sigaction(signal.SIGBUS, ctypes.byref(self._before), None)  # faults again


def _address(view: memoryview) -> int:
    # ctypes cannot take the address of a read-only buffer; numpy can.
    import numpy as np

    return int(np.frombuffer(view, np.uint8).ctypes.data)


guard = Guard()
"""The guard of this process; there is one SIGBUS handler."""
