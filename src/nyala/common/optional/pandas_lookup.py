"""Arrow's look for pandas: at its first conversion of Python values, it imports pandas if it is installed.

That takes a third of a second, so that it is left to the first write, or the first data frame: a program that
looks rows up never needs it. It fails when two threads are the first at the same time.
"""

import sys
import threading
from functools import cache

import pyarrow as pa

_lock = threading.Lock()


def look_for_pandas() -> None:
    """Have Arrow look for pandas before values or frames are converted, once in a process. Any thread."""
    with _lock:
        _look()


def look_for_imported_pandas() -> None:
    """As `look_for_pandas`, if this program has imported pandas: Arrow must recognise its frames."""
    if "pandas" in sys.modules:
        look_for_pandas()


@cache
def _look() -> None:
    pa.array([0])
