"""Kills the leader master in the middle of definitions: none is lost, none takes effect twice.

python -m tests.cluster.ddl_kills --kills 100 --minutes 60 --seed 1
"""

import argparse
import random
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field

import pyarrow as pa

from nyala.client import Client
from nyala.common.errors import AlreadyPresent
from nyala.testing import MiniCluster

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])
SOON_S = 0.15
"""Estimated seconds of a definition; the leader is killed at a random time within it."""


@dataclass
class Definitions:
    """Definitions of one client, and the result expected: the columns of each table."""

    client: Client
    rng: random.Random
    prefix: str
    number: int = 0
    tables: dict[str, list[str]] = field(default_factory=dict)

    def next(self) -> None:
        """Carry out a random definition; return once a leader has acknowledged it."""
        self.number += 1
        kinds = ["create", "alter", "alter", "drop"] if self.tables else ["create"]
        kind, name = self.rng.choice(kinds), f"{self.prefix}{self.number}"
        if kind == "create":
            self.client.create_table(name, SCHEMA, ["k"])
            self.tables[name] = ["k", "v"]
            return
        old = self.rng.choice(sorted(self.tables))
        if kind == "drop":
            self.client.drop_table(old)
            del self.tables[old]
            return
        column = f"c{self.number}"
        self.client.table(old).alter().add_column(column, pa.int32()).rename(name).commit()
        self.tables[name] = [*self.tables.pop(old), column]

    def check(self) -> None:
        """Compare with the existing tables; check that each can be read and that its name is in use."""
        found = {n for n in self.client.tables() if n.startswith(self.prefix)}
        assert found == set(self.tables), f"{found} in place of {set(self.tables)}"
        for name, columns in self.tables.items():
            table = self.client.table(name)
            assert [c.name for c in table.definition.columns] == columns
            assert table.count() == 0
            try:
                self.client.create_table(name, SCHEMA, ["k"])
            except AlreadyPresent:
                continue
            raise AssertionError(f"{name} was created twice")


def run(
    cluster: MiniCluster, kills: int, seed: int, *, prefix: str, until: float = 0,
    say: Callable[[str], None] = lambda text: None,
) -> int:  # fmt: skip
    """Kill the leader master during definitions; return the number of kills.

    Args:
        cluster: of three masters or more.
        kills: number of kills; one after the answer does not count.
        seed: seed of the definitions and of the times of kills.
        prefix: prefix of the names of its tables, which are dropped at the end.
        until: no further kill after this monotonic time; 0: no limit.
        say: receives progress messages.

    Raises:
        AssertionError: a definition is lost or doubled; or the definitions end before a leader can be killed.
    """
    rng = random.Random(seed)
    met = missed = 0
    soon_s = SOON_S
    with cluster.connect() as client, ThreadPoolExecutor(1) as pool:
        defined = Definitions(client, rng, prefix)
        while met < kills and not 0 < until < time.monotonic():
            victim = cluster.leader_master()
            under_way: Future[None] = pool.submit(defined.next)
            wait([under_way], rng.uniform(0, soon_s))
            if under_way.done():
                missed, soon_s = missed + 1, soon_s / 2
                assert missed <= 20 + kills, (
                    f"{missed} definitions ended before the kill, {met} did not"
                )
            else:
                met, soon_s = met + 1, min(SOON_S, soon_s * 1.2)
            cluster.kill(victim)
            try:
                under_way.result()
            finally:
                cluster.start(victim, wait=False)
            say(f"{met} leaders killed in the middle of a definition, {missed} just after one")
        cluster.wait_healthy()
        defined.check()
        for name in list(defined.tables):
            client.drop_table(name)
    return met


def main() -> int:
    """Run many kills on a cluster of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    until = time.monotonic() + 60 * asked.minutes
    with MiniCluster() as cluster:
        met = run(cluster, asked.kills, asked.seed, prefix="kills", until=until, say=print)
    print(f"{met} leaders killed in the middle of a definition; none lost, none doubled")
    return 0


if __name__ == "__main__":
    sys.exit(main())
