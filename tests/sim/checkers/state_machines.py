"""Comparison of the members' state machines: equal order, results and state."""

from collections import Counter
from collections.abc import Iterable

from tests.sim.systems.kv import Applied


class ApplyWatch:
    """Checks the machines of one group: the same operations in the same order, none omitted or repeated,
    the same results, and the same checksums of the whole state."""

    def __init__(self) -> None:
        self._canon: dict[int, Applied] = {}
        self.checks: Counter[str] = Counter()

    def look(self, name: str, applied: Iterable[Applied]) -> None:
        """Check the entries that one member has applied since the last call, within one incarnation.

        Raises:
            AssertionError: with the values.
        """
        for one in applied:
            assert one.id > one.before, f"{name} applied {one.id} after {one.before}"
            assert one.id.index > one.before.index, f"{name} applied {one.id} after {one.before}"
            kept = self._canon.setdefault(one.id.index, one)
            assert kept == one, f"{name} applied {one} where another applied {kept}"
            self.checks["applied"] += 1
            self.checks["states"] += one.image is not None
