"""Sizes of all containers that are reachable from some objects, by class and attribute.

A container that grows with events, peers, clients or tables is a leak, however small its items are. The walk
follows attributes of the product's objects, containers, bound methods, closures and the variables of
suspended coroutines; it does not enter the simulator.
"""

import asyncio
import functools
import types
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from itertools import pairwise
from typing import Any

WALKED = ("nyala", "prometheus_client", "asyncio")
"""Packages whose objects are entered."""


def sizes(
    roots: Iterable[object], skip: Callable[[object], bool] = lambda one: False
) -> Counter[str]:
    """Return the total length of all containers, by `Class.attribute`, and the number of objects of a class.

    A container that several attributes refer to has the first of their names, alphabetically.

    Args:
        roots: where the walk begins.
        skip: returns whether an object is neither counted nor entered.
    """
    found: Counter[str] = Counter()
    seen: dict[int, object] = {}
    names: dict[int, str] = {}
    waiting: deque[tuple[str, object]] = deque(("root", r) for r in roots)
    while waiting:
        label, one = waiting.pop()
        if isinstance(one, str | bytes | int | float | type | types.ModuleType | None):
            continue
        if id(one) in names:
            names[id(one)] = min(label, names[id(one)])
        if id(one) in seen or skip(one):
            continue
        seen[id(one)] = one  # kept, so that no id is used again
        if isinstance(one, Mapping | list | deque | set | frozenset) and not _entered(one):
            names[id(one)] = label
        elif _entered(one):
            found[f"objects of {type(one).__qualname__}"] += 1
        waiting.extend(_inside(label, one))
    for number, label in names.items():
        one = seen[number]
        found[label] += len(one) if isinstance(one, Sized) else 0
    return found


def _entered(one: object) -> bool:
    module = type(one).__module__ or ""
    return module.partition(".")[0] in WALKED and not hasattr(one, "SerializeToString")


def _inside(label: str, one: object) -> Iterator[tuple[str, object]]:
    """Yield what an object refers to, with labels."""
    if isinstance(one, Mapping) and hasattr(one, "values"):
        for item in list(one.values()):
            yield f"{label}[]", item
        if not _entered(one):
            return
    if isinstance(one, list | tuple | deque | set | frozenset):
        for item in list(one):
            yield f"{label}[]", item
    elif isinstance(one, functools.partial):
        yield from ((label, item) for item in (one.func, *one.args, *one.keywords.values()))
    elif isinstance(one, types.MethodType):
        yield label, one.__self__
    elif isinstance(one, types.FunctionType):
        yield from _cells(one)
    elif isinstance(one, types.CoroutineType | types.AsyncGeneratorType | types.GeneratorType):
        yield from _frame(one)
    elif isinstance(one, asyncio.Task):
        yield label, one.get_coro()
    if _entered(one):
        for name, value in _attributes(one):
            yield f"{type(one).__qualname__}.{name}", value


def _cells(one: types.FunctionType) -> Iterator[tuple[str, object]]:
    for name, cell in zip(one.__code__.co_freevars, one.__closure__ or (), strict=True):
        try:
            yield f"{one.__qualname__}.{name}", cell.cell_contents
        except ValueError:  # not assigned yet
            continue


def _frame(one: Any) -> Iterator[tuple[str, object]]:
    """Yield the variables of a suspended coroutine or generator, and what it waits for."""
    for prefix in ("cr", "ag", "gi"):
        frame = getattr(one, f"{prefix}_frame", None)
        if frame is not None:
            yield from ((f"{one.__qualname__}.{n}", v) for n, v in frame.f_locals.items())
            yield one.__qualname__, getattr(one, f"{prefix}_await", None)


def _attributes(one: object) -> Iterator[tuple[str, object]]:
    yield from vars(one).items() if hasattr(one, "__dict__") else ()
    names = getattr(type(one), "__struct_fields__", ())
    for kind in type(one).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        names = (*names, *((slots,) if isinstance(slots, str) else slots))
    for name in dict.fromkeys(names):
        mangled = f"_{type(one).__name__}{name}" if name.startswith("__") else name
        value = getattr(one, mangled, None)
        if value is not None:
            yield name, value


def growing(samples: Sequence[Mapping[str, int]], least: int) -> dict[str, list[int]]:
    """Return the containers that grew by `least` in each interval, with all their sizes.

    Args:
        samples: sizes at several times, each after the same work.
        least: smallest growth in an interval.
    """
    found = {name: [s.get(name, 0) for s in samples] for name in sorted(samples[-1])}
    return {
        name: held
        for name, held in found.items()
        if all(after - before >= least for before, after in pairwise(held))
    }
