"""`./run soak transactions`: random worlds, as many as fit; a violated rule prints its seed.

python -m tests.model.transactions.run [--minutes M] [--worlds N] [--seed N] [--states N] [--weak NAME ...]

With `--states`, explorations follow, with so many states each. With `--weak`, rules are left out one by one
(`all`: each of them), each until a world shows it.
"""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping

from tests.model.search import Broken
from tests.model.transactions.explore import FULL, explore
from tests.model.transactions.weak import TUNED, UNSEEN, WEAK
from tests.model.transactions.world import UNTUNED, World


def run(seed: int, weak: Iterable[str] = (), tuned: Mapping[str, float] = UNTUNED) -> Counter[str]:
    """Run one world; return what happened in it.

    Args:
        seed: see `World`.
        weak: see `World`.
        tuned: see `World`.

    Raises:
        Broken: a rule is violated; the text begins with the seed.
    """
    world = World(seed, weak, tuned)
    try:
        world.run()
    except Broken as err:
        raise Broken(f"seed {seed}: {err}") from err
    state, history = world.groups["catalog"].best().state, world.history
    outcomes = Counter(c.outcome for c in world.clients.values())
    return Counter(
        worlds=1,
        commits=len(state.rows) + len(state.past),
        reads=len(history.reads),
        acknowledged=len(history.acks),
        denied=outcomes["denied"],
        unknown=outcomes["unknown"],
        dropped=len(state.dropped),
        terms=sum(max(r.term for r in g.replicas) for g in world.groups.values()),
    )


def text(tally: Counter[str]) -> str:
    """Return a line with the counts."""
    return ", ".join(f"{count:,} {name}" for name, count in tally.items())


def caught(weak: str, seeds: Iterable[int]) -> tuple[int, str]:
    """Leave a rule out until a world shows it; return the number of worlds and the violation."""
    count = 0
    for seed in seeds:
        count += 1
        try:
            run(seed, (weak,), TUNED.get(weak, UNTUNED))
        except Broken as err:
            return count, str(err)
    return count, ""


def all_caught(names: Iterable[str], seeds: Iterable[int]) -> bool:
    """Leave rules out one by one, and print what shows it; return whether each was missed."""
    good = True
    for weak in names:
        count, found = caught(weak, seeds)
        print(f"{weak}: {count} worlds, {found or 'NOT CAUGHT'}", flush=True)
        good = good and found != ""
    return good


def main() -> int:
    """Run the command line; 1 when a rule is violated, or one that was left out is not missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--worlds", type=int, default=1 << 40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--states", type=int, default=0)
    parser.add_argument(
        "--weak", nargs="+", default=[], choices=[*WEAK, *UNSEEN, "all"], metavar="NAME"
    )
    asked = parser.parse_args()
    seeds = range(asked.seed, asked.seed + asked.worlds)
    if asked.weak:
        return not all_caught(WEAK if asked.weak == ["all"] else asked.weak, seeds)
    tally: Counter[str] = Counter()
    end = time.monotonic() + asked.minutes * 60
    try:
        for seed in seeds:
            tally += run(seed)
            if time.monotonic() > end:
                break
        print(
            f"transactions: seeds from {asked.seed} on: {text(tally)}; no rule violated", flush=True
        )
        for name, bounds in FULL.items() if asked.states else ():
            found = explore(bounds, asked.states)
            how = "complete" if found.complete else "stopped"
            print(f"{name}: {found.states:,} states, {how}, no rule violated", flush=True)
    except Broken as err:
        print(err)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
