"""Columns and rows of each table that an optimised plan of Spark needs.

Spark's optimiser puts a projection (or an aggregate) above a relation of which not all columns are needed,
and moves conditions down to it. So the columns needed of a relation are those that the projection and the
filters between the two refer to. Below any other operator all columns are needed.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nyala.spark.query.conditions import where_of

_CLOSING = ("Project", "Aggregate")


@dataclass(slots=True)
class Use:
    """Columns and rows of one table that a plan needs, in all places where the table occurs.

    Attributes:
        columns: names of the columns.
        conditions: one per place, of which a row fulfils one at least; None in it: all rows.
    """

    columns: set[str] = field(default_factory=set)
    conditions: list[str | None] = field(default_factory=list)

    def where(self, longest: int) -> str | None:
        """Return the condition on the rows that are needed; None: all rows.

        Args:
            longest: maximum number of characters; with more of them all rows are read.
        """
        texts = {c for c in self.conditions if c is not None}
        if None in self.conditions or not texts:
            return None
        text = " or ".join(sorted(texts))
        return text if len(text) <= longest else None


@dataclass(frozen=True, slots=True)
class _Place:
    """Operators above a node: filters directly above, and the projection above these, if there is one."""

    closing: Any = None
    filters: tuple[Any, ...] = ()


def uses_of(
    plan: Any, tables: Mapping[int, str], floats: Mapping[str, Sequence[str]]
) -> dict[str, Use]:
    """Return what a plan needs of each table; tables that it does not read are left out.

    Args:
        plan: optimised logical plan of Catalyst.
        tables: name of the table, by the id of the RDD of its relation.
        floats: names of the columns of type float or double, by table.
    """
    uses: dict[str, Use] = {}
    for root in (plan, *_items(plan.subqueriesAll())):
        _walk(root, _Place(), tables, floats, uses)
    return uses


def _walk(
    node: Any,
    place: _Place,
    tables: Mapping[int, str],
    floats: Mapping[str, Sequence[str]],
    uses: dict[str, Use],
) -> None:
    kind = node.getClass().getSimpleName()
    if kind == "LogicalRDD":
        name = tables.get(node.rdd().id())
        if name is not None:
            _add(node, place, floats[name], uses.setdefault(name, Use()))
        return
    if kind in _CLOSING:
        below = _Place(node)
    elif kind == "Filter":
        below = _Place(place.closing, (*place.filters, node))
    else:
        below = _Place()
    for child in _items(node.children()):
        _walk(child, below, tables, floats, uses)


def _add(relation: Any, place: _Place, floats: Sequence[str], use: Use) -> None:
    consumers = [n.references() for n in (place.closing, *place.filters) if n is not None]
    for attribute in _items(relation.output()):
        if place.closing is None or any(c.contains(attribute) for c in consumers):
            use.columns.add(str(attribute.name()))
    texts = [where_of(f.condition(), floats) for f in place.filters]
    known = [t for t in texts if t is not None]
    use.conditions.append(f"({' and '.join(known)})" if known else None)


def _items(sequence: Any) -> Iterator[Any]:
    for n in range(sequence.size()):
        yield sequence.apply(n)
