"""What must hold of a Raft group over time, derived again from the members' own state.

`GroupWatch` looks at the cores of one group's living members between events: `raft.invariants` holds
at each look, and across looks no term has two leaders and nothing committed changes or goes.
"""

from collections.abc import Callable, Iterable

from nyala.common.ids import NO_OP, Operation, OpId
from nyala.raft import invariants
from nyala.raft.node import RaftNode

WHOLE_EVERY = 50
"""Looks between two that check whole logs, which costs time in proportion to their length."""


class GroupWatch:
    """Follows one group.

    Args:
        name: of the group, for messages.
        members: its living cores by server name, asked at each look.
    """

    def __init__(self, name: str, members: Callable[[], Iterable[tuple[str, RaftNode]]]) -> None:
        self._name = name
        self._members = members
        self._leaders: dict[int, str] = {}
        self._committed: dict[int, tuple[OpId, int]] = {}
        self._highest = 0
        self._checked: dict[RaftNode, int] = {}
        self.looks = 0

    @property
    def leaders(self) -> dict[int, str]:
        """Leader by term, as far as seen."""
        return self._leaders

    @property
    def committed(self) -> int:
        """Highest index that any member knew to be committed."""
        return self._highest

    def look(self) -> None:
        """Check everything now.

        Raises:
            AssertionError: with the values.
        """
        self.looks += 1
        members = list(self._members())
        if self.looks % WHOLE_EVERY == 1:
            invariants.check_group([node for _, node in members])
        for name, node in members:
            if node.is_leader:
                before = self._leaders.setdefault(node.term, name)
                assert before == name, f"{self._name}: {before} and {name} lead term {node.term}"
            self._check_committed(name, node)

    def _check_committed(self, name: str, node: RaftNode) -> None:
        log = node.core.log
        first = max(self._checked.get(node, 0), log.base.index) + 1
        for index in range(first, log.committed + 1):
            found = (log.op_id(index), 0)
            kept = self._committed.setdefault(index, found)
            assert kept[0] == found[0], (
                f"{self._name}: committed entry {kept[0]} became {found[0]} at {name}"
            )
        self._checked[node] = log.committed
        self._highest = max(self._highest, log.committed)


class ApplyWatch:
    """What the members' state machines applied: the same operations in the same order, stamps rising."""

    def __init__(self) -> None:
        self._canon: dict[int, tuple[OpId, int, bytes]] = {}

    def look(self, name: str, applied: Iterable[tuple[OpId, int, bytes]]) -> None:
        """Check one member's list of (op id, stamp, payload), as applied in one life."""
        last, stamp = NO_OP, 0
        for one in applied:
            assert one[0] > last, f"{name} applied {one[0]} after {last}"
            assert one[0].index > last.index, f"{name} applied {one[0]} after {last}"
            assert one[1] > stamp, f"{name}: stamps fall at {one[0]}"
            kept = self._canon.setdefault(one[0].index, one)
            assert kept == one, f"{name} applied {one} where another applied {kept}"
            last, stamp = one[0], one[1]


def applied_of(operations: Iterable[Operation]) -> list[tuple[OpId, int, bytes]]:
    """Return operations as `ApplyWatch` takes them."""
    return [(o.id, o.stamp, o.payload) for o in operations]
