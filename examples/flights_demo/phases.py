"""What each phase of the demo took."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Phases:
    """Seconds of each phase, in the order in which they began."""

    def __init__(self) -> None:
        self.took: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time a phase.

        Args:
            name: of the phase.
        """
        began = time.monotonic()
        try:
            yield
        finally:
            self.took[name] = time.monotonic() - began
