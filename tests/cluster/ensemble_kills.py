"""Kills and pauses processes of an ensemble in the middle of operations: none is lost or takes effect twice.

A round: clients create, drop and split tables of their own while a coordinator, a server, the leader of the
journal or two of them are killed or paused; then everything runs again, and the tables, their tablets, the
servers' own lists of tablets and the state of the next leader are compared with what was acknowledged.

python -m tests.cluster.ensemble_kills --kills 200 --minutes 60 --seed 1
"""

import argparse
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field

from nyala.testing import MiniCluster, processes
from nyala.wire import methods
from nyala.wire.proto import ram_pb2 as pb
from tests.cluster.support.ensemble import RealEnsemble, real_ensemble

CLIENTS = 3
MOST_TABLES = 5
"""Number of tables from which a client creates no further one."""
SOON_S = 0.3
"""Longest time from the beginning of the operations to the kill, in seconds."""


@dataclass
class EnsembleOperations:
    """Operations of one client on tables of its own, and the tables expected: id and begins of tablets.

    Attributes:
        ensemble: gets the requests.
        rng: draws operations.
        prefix: of the names of its tables.
        number: operations so far.
        largest: largest id of its tables.
        tables: those that exist.
    """

    ensemble: RealEnsemble
    rng: random.Random
    prefix: str
    number: int = 0
    largest: int = 0
    tables: dict[str, tuple[int, set[int]]] = field(default_factory=dict)

    def next(self) -> None:
        """Carry out a random operation; return once it is acknowledged.

        Raises:
            NyalaError: no coordinator has acknowledged it within the deadline of a request.
        """
        self.number += 1
        kinds = ["split", "split", "drop"] if self.tables else ["create"]
        kind = self.rng.choice([*kinds, "create"] if len(self.tables) < MOST_TABLES else kinds)
        operation = pb.OperationId(client=self.prefix, sequence=self.number)
        name = f"{self.prefix}{self.number}"
        if kind == "create":
            self._create(pb.CreateTableRequest(name=name, server_span=4, operation=operation))
            return
        old = self.rng.choice(sorted(self.tables))
        if kind == "drop":
            table_id = self.tables.pop(old)[0]
            request = pb.DropTableRequest(name=old, operation=operation, id=table_id)
            dropped = self.ensemble.ask(methods.RAM_DROP_TABLE, request).id
            assert dropped == table_id, f"{old} is table {table_id}, and {dropped} was dropped"
            return
        self._split(pb.SplitTabletRequest(name=old, split_hash=self.rng.randrange(1, 1 << 64)))

    def _create(self, request: pb.CreateTableRequest) -> None:
        made = self.ensemble.ask(methods.RAM_CREATE_TABLE, request).table
        assert made.id > self.largest, f"{made.name} has id {made.id}, and {self.largest} was used"
        self.largest = made.id
        self.tables[made.name] = made.id, begins(made)

    def _split(self, request: pb.SplitTabletRequest) -> None:
        table_id, firsts = self.tables[request.name]
        firsts.add(request.split_hash)
        made = self.ensemble.ask(methods.RAM_SPLIT_TABLET, request).table
        assert (made.id, begins(made)) == (table_id, firsts), f"{request.name} was split"


def begins(table: pb.Table) -> set[int]:
    """Return the hashes with which the tablets of a table begin."""
    return {t.first for t in table.tablets}


@dataclass
class EnsembleKills:
    """Kills and pauses in one ensemble under operations of some clients.

    Attributes:
        cluster: has the journal.
        ensemble: two coordinators or more, and three servers or more.
        rng: draws victims and times.
        clients: their operations.
        counts: kills and pauses by kind of victim.
    """

    cluster: MiniCluster
    ensemble: RealEnsemble
    rng: random.Random
    clients: list[EnsembleOperations]
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def kills(self) -> int:
        """Number of kills and pauses."""
        return self.counts.total()

    def round(self, pool: ThreadPoolExecutor) -> None:
        """Kill or pause in the middle of operations; check everything once all processes run again."""
        epoch, before = self.ensemble.dump()
        victims = self.rng.choice(
            [
                ["leader"], ["leader"], ["paused leader"], ["server"], ["paused server"],
                ["journal"], ["leader", "server"], ["leader", "journal"], ["server", "journal"],
            ]
        )  # fmt: skip
        quiet = victims == ["leader"] and self.rng.random() < 0.5
        under_way = [] if quiet else [pool.submit(c.next) for c in self.clients]
        wait(under_way, self.rng.uniform(0, SOON_S))
        restore = [self._hit(victim) for victim in victims]
        self._finish(under_way)
        later, after = self.ensemble.dump()
        assert later >= epoch, f"the leader has epoch {later}, its predecessor {epoch}"
        if quiet:
            assert later > epoch, "a dead leader leads"
            assert after["records"] == before["records"], "the next leader has another state"
        if victims == ["paused server"]:  # its tablets go to others before it resumes
            self.ensemble.wait_settled(without=[restore[0].victim])
        for one in restore:
            one.undo()
        self.cluster.wait_healthy()
        self.ensemble.wait_settled()
        self.check()

    def _finish(self, under_way: list[Future[None]]) -> None:
        for operation in under_way:
            operation.result()

    def _hit(self, kind: str) -> "Restore":
        """Kill or pause a victim; return how it runs again."""
        self.counts[kind] += 1
        if kind == "journal":
            address = self.ensemble.journal_leader()
            name = next(n for n in self.cluster.names if self.cluster.address(n) == address)
            self.cluster.kill(name)
            return Restore(name, lambda: self.cluster.start(name))
        leader = kind.endswith("leader")
        servers = self.ensemble.servers()
        spec = self.ensemble.leader() if leader else self.rng.choice(servers)
        if kind.startswith("paused"):
            processes.send(spec, signal.SIGSTOP)
            return Restore(spec.name, lambda: self._resume(spec.name))
        processes.end(spec, signal.SIGKILL)
        return Restore(spec.name, lambda: self.ensemble.start(spec.name))

    def _resume(self, name: str) -> None:
        """Let a paused process go on."""
        processes.send(self.ensemble.server(name), signal.SIGCONT)

    def check(self) -> None:
        """Compare all tables with the operations that were acknowledged.

        Raises:
            AssertionError: an operation was lost or took effect twice.
        """
        wanted = {name: known for client in self.clients for name, known in client.tables.items()}
        prefixes = tuple(client.prefix for client in self.clients)
        found = {
            t.name: (t.id, begins(t)) for t in self.ensemble.tables() if t.name.startswith(prefixes)
        }
        assert found == wanted, f"{found} in place of {wanted}"


@dataclass(frozen=True, slots=True)
class Restore:
    """Return of a killed or paused process.

    Attributes:
        victim: name of the process.
        undo: starts it, or lets it go on.
    """

    victim: str
    undo: Callable[[], None]


def run(
    cluster: MiniCluster, ensemble: RealEnsemble, kills: int, seed: int, *, prefix: str = "kills",
    until: float = 0, say: Callable[[str], None] = lambda text: None,
) -> EnsembleKills:  # fmt: skip
    """Run rounds until the number of kills and pauses or the time is reached.

    Args:
        cluster: has the journal.
        ensemble: two coordinators or more, and three servers or more.
        kills: number of kills and pauses.
        seed: seed of operations, victims and times.
        prefix: prefix of the names of all tables.
        until: no further round after this monotonic time; 0: no limit.
        say: receives progress messages.

    Raises:
        AssertionError: an operation was lost or took effect twice; or a process does not agree.
    """
    rng = random.Random(seed)
    clients = [
        EnsembleOperations(ensemble, random.Random(f"{seed} {n}"), f"{prefix}-{n}-")
        for n in range(CLIENTS)
    ]
    found = EnsembleKills(cluster, ensemble, rng, clients)
    with ThreadPoolExecutor(CLIENTS) as pool:
        while found.kills < kills and not 0 < until < time.monotonic():
            found.round(pool)
            operations = sum(c.number for c in clients)
            say(f"{found.kills} kills and pauses, {operations} operations acknowledged")
    return found


def main() -> int:
    """Run many kills on an ensemble of its own."""
    parser = argparse.ArgumentParser(prog="./run soak coordinator", description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    until = time.monotonic() + 60 * asked.minutes
    with MiniCluster() as cluster, real_ensemble(cluster, 2, 3) as ensemble:
        found = run(cluster, ensemble, asked.kills, asked.seed, until=until, say=print)
    kinds = ", ".join(f"{n} {kind}" for kind, n in sorted(found.counts.items()))
    operations = sum(c.number for c in found.clients)
    print(
        f"{found.kills} kills and pauses ({kinds}) under {operations} operations; none lost or doubled"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
