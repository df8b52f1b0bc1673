"""Model of definitions, from the answers to clients: each table is defined by one client, step by step.

A definition whose outcome is unknown leaves two possible states; the next answer, or the state after
healing, determines which.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

PRESENT, DROPPED, GONE = "present", "dropped", "gone"


@dataclass(frozen=True, slots=True)
class Shape:
    """One state of a table.

    Attributes:
        state: PRESENT; DROPPED, which can be recalled; GONE permanently.
        name: name of the table.
        columns: names of the columns, in order.
        ranges: (lower, upper) of each range.
        replicas: number of replicas of each tablet.
    """

    state: str
    name: str
    columns: tuple[str, ...]
    ranges: tuple[tuple[int, int], ...]
    replicas: int


class Modelled:
    """One table according to the answers to its client."""

    def __init__(self, table_id: str, shape: Shape) -> None:
        self.table_id = table_id
        self.possible = {shape: None}

    @property
    def shape(self) -> Shape:
        """The only possible state, or the first of several."""
        return next(iter(self.possible))

    def done(self, change: Callable[[Shape], Shape]) -> None:
        """A definition took effect."""
        self.possible = {change(s): None for s in self.possible}

    def unknown(self, change: Callable[[Shape], Shape]) -> None:
        """A definition may have taken effect, now or later."""
        self.possible |= {change(s): None for s in self.possible}

    def saw(self, shape: Shape) -> None:
        """Set the present state. Raises AssertionError if it is not possible."""
        assert shape in self.possible, (
            f"table {self.table_id} is {shape}, and may be {list(self.possible)}"
        )
        self.possible = {shape: None}


class Model:
    """All tables."""

    def __init__(self) -> None:
        self.tables: dict[str, Modelled] = {}
        self.acknowledged = 0
        self.refused = 0
        self.unknown = 0

    def __iter__(self) -> Iterator[Modelled]:
        return iter(self.tables.values())


def altered(**changes: object) -> Callable[[Shape], Shape]:
    """Return the change that sets some attributes."""
    return lambda shape: replace(shape, **changes)  # type: ignore[arg-type]
