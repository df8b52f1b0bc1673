"""Placement of replicas: power of two choices, by replicas of the same table, then by all replicas.

The replicas of one table are spread evenly, whatever else the servers have, since most load is on one table.
Of many small tables the emptier servers get more. Pure; the random source is passed in.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from random import Random

from nyala.common.errors import InvalidArgument, Unavailable
from nyala.common.ids import ServerUuid


@dataclass(frozen=True, slots=True)
class Candidate:
    """A live tablet server.

    Attributes:
        uuid: its id.
        location: failure domain; empty: not known.
        replicas: number of its replicas.
        of_table: number of its replicas of the table whose tablets are placed.
    """

    uuid: ServerUuid
    location: str
    replicas: int
    of_table: int = 0


Loads = dict[ServerUuid, tuple[int, int]]
"""Load of servers: replicas of the table, and of all tables, compared in this order."""


def place(
    candidates: Sequence[Candidate], tablets: int, replicas: int, rng: Random, opening: int = 0
) -> list[tuple[ServerUuid, ...]]:
    """Choose the servers of new tablets.

    Each replica goes to the less loaded of two random servers among those that have none of this tablet
    and, if there are such servers, are in a location that has none either.

    Args:
        candidates: live servers, in any order.
        tablets: how many tablets.
        replicas: how many replicas each.
        rng: the random source.
        opening: number of further live servers that are still opening their replicas.

    Returns:
        Per tablet its distinct servers.

    Raises:
        InvalidArgument, Unavailable: as `require_servers`.
    """
    require_servers(replicas, len(candidates), opening)
    ordered = sorted(candidates, key=lambda c: c.uuid)
    load = {c.uuid: (c.of_table, c.replicas) for c in ordered}
    return [_servers(ordered, load, replicas, rng) for _ in range(tablets)]


def require_servers(replicas: int, ready: int, opening: int) -> None:
    """Check that there is a server for each replica of a tablet.

    Args:
        replicas: how many there are to be.
        ready: servers that are live and take replicas.
        opening: further live servers that are still opening their replicas.

    Raises:
        Unavailable: there will be enough once some have opened their replicas; callers retry.
        InvalidArgument: more replicas than live servers. Both messages name the numbers.
    """
    if replicas <= ready:
        return
    need = f"{replicas} replicas need {replicas} live tablet servers"
    if replicas <= ready + opening:
        raise Unavailable(
            f"{need}; {ready} {_are(ready)} ready, and {opening} {_are(opening)} starting: "
            "they are opening their replicas; retry"
        )
    live = ready + opening
    raise InvalidArgument(
        f"{need}, and {live} {_are(live)} live; start more, or choose fewer replicas"
    )


def _are(number: int) -> str:
    return "is" if number == 1 else "are"


def place_one(free: Sequence[Candidate], taken: Collection[str], rng: Random) -> Candidate | None:
    """Choose the server of one more replica, as `place` does; None when there is none.

    Args:
        free: live servers without a replica of the tablet, in a stable order.
        taken: locations of the other replicas.
        rng: the random source.
    """
    if not free:
        return None
    in_new_location = [c for c in free if c.location not in taken or not c.location]
    return _less_loaded(
        in_new_location or free, {c.uuid: (c.of_table, c.replicas) for c in free}, rng
    )


def _servers(
    ordered: Sequence[Candidate], load: Loads, replicas: int, rng: Random
) -> tuple[ServerUuid, ...]:
    chosen: list[Candidate] = []
    for _ in range(replicas):
        free = [c for c in ordered if c not in chosen]
        used = [c.location for c in chosen if c.location]
        in_new_location = [c for c in free if c.location not in used]
        pick = _less_loaded(in_new_location or free, load, rng)
        of_table, of_all = load[pick.uuid]
        load[pick.uuid] = of_table + 1, of_all + 1
        chosen.append(pick)
    return tuple(c.uuid for c in chosen)


def _less_loaded(free: Sequence[Candidate], load: Loads, rng: Random) -> Candidate:
    two = rng.sample(free, min(2, len(free)))
    return min(two, key=lambda c: load[c.uuid])
