"""Clients that write, read and delete one row at a time, and a check of their recorded histories.

Several clients work on the same key; after `OPS` operations all move on to a new one, so that each
history stays short enough for the search. Reads are `latest`. See tests/sim/checkers/linearizability.py.
"""

import threading
import time
from collections.abc import Callable

from nyala.client import Client, Table
from nyala.common.errors import NyalaError
from tests.cluster.support.workload import Worker, rows
from tests.sim.checkers.linearizability import OPEN, Kind, Op, linearizable

OWNER = "register"
OPS = 60
CLIENTS = 3
TIMEOUT_MS = 4_000
"""Milliseconds after which an operation without an answer is recorded with unknown outcome."""


class Histories:
    """Operations that all clients recorded, by key."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._value = 0
        self.ops: dict[int, list[Op]] = {}

    def begin(self) -> tuple[int, int]:
        """Return the key to use and a value that was never written."""
        with self._lock:
            self._value += 1
            return self._value // OPS, self._value

    def record(self, key: int, op: Op) -> None:
        with self._lock:
            self.ops.setdefault(key, []).append(op)

    def judge(self) -> int:
        """Check all histories after the clients have ended; return the number of operations.

        Raises:
            AssertionError: the history of some key is not linearizable.
        """
        for key, history in self.ops.items():
            assert linearizable(history), f"key {key} is not linearizable: {history}"
        return sum(map(len, self.ops.values()))


class Hand(Worker):
    """One client of the registers."""

    def __init__(
        self, name: str, connect: Callable[[], Client], table: str, seed: int, histories: Histories
    ) -> None:
        super().__init__(name, connect, table, seed)
        self._histories = histories

    def step(self, client: Client, table: Table) -> None:
        key, value = self._histories.begin()
        kind = self.random.choice((Kind.READ, Kind.READ, Kind.WRITE, Kind.WRITE, Kind.DELETE))
        call, ok, found = time.monotonic(), True, None
        try:
            if kind is Kind.READ:
                row = table.get({"owner": OWNER, "n": key})
                found = row["v"] if row else None
            elif kind is Kind.WRITE:
                table.upsert(rows(OWNER, [key], [value])).raise_for_errors()
            else:
                ok = not len(table.delete(rows(OWNER, [key], [0])).errors)
        except NyalaError:
            if kind is Kind.READ:
                return
            self._histories.record(
                key, Op(call, OPEN, kind, value, None if kind is Kind.DELETE else True)
            )
            return
        seen = found if kind is Kind.READ else value
        self._histories.record(key, Op(call, time.monotonic(), kind, seen, ok))


class Registers:
    """The clients of one run, from `with` to its end."""

    def __init__(self, connect: Callable[[int], Client], table: str, seed: int) -> None:
        self.histories = Histories()
        self._clients = [
            Hand(f"register-{n}", lambda: connect(TIMEOUT_MS), table, seed, self.histories)
            for n in range(CLIENTS)
        ]

    def __enter__(self) -> "Registers":
        for client in self._clients:
            client.start()
        return self

    def __exit__(self, *_: object) -> None:
        for client in self._clients:
            client.stop()
        for client in self._clients:
            client.join(60)

    def check(self) -> None:
        """Raise the error that stopped a client, if any."""
        for client in self._clients:
            if client.error is not None:
                raise AssertionError(f"{client.name}: {client.error!r}") from client.error
