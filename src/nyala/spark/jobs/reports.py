"""Lines about the progress of a job."""

import sys
from collections.abc import Callable

Report = Callable[[str], object]
"""Called with a line about the progress."""


def to_standard_error(line: str) -> None:
    """Print a line about the progress."""
    print(line, file=sys.stderr, flush=True)
