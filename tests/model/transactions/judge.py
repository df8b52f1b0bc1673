"""The judge: the history of each tablet is a serial execution by time, and every answer agrees with it."""

from collections import defaultdict
from typing import Any

from tests.model.search import Broken
from tests.model.transactions.catalog_state import JobKey, Row, StreamKey
from tests.model.transactions.groups import Entry
from tests.model.transactions.tablet_state import Rows

NEVER = 1 << 60


class Judge:
    """Judges a world.

    Args:
        world: one whose faults are over and that has nothing in flight, or a state of an exploration.
    """

    def __init__(self, world: Any) -> None:
        self.world, self.history = world, world.history
        catalog = world.groups["catalog"].best()
        decided = [e.op for e in world.groups["catalog"].committed if e.op[0] == "commit"]
        self.rows: dict[str, Row] = {txn: row for _, txn, row in decided}
        self.dropped: dict[str, int] = catalog.state.dropped
        self.serial = {name: self._serial(name) for name in world.tablets}

    def check(self) -> None:
        """Check everything.

        Raises:
            Broken: a rule is violated.
        """
        for name in self.world.tablets:
            self._check_tablet(name)
        self.check_answered()

    def check_answered(self) -> None:
        """Check what is true in the middle of a world too."""
        self._check_decisions()
        self._check_keys()
        self._check_answers()
        self._check_fresh()

    def _log(self, name: str) -> list[Entry]:
        found: list[Entry] = self.world.groups[name].committed
        return found

    def _serial(self, name: str) -> Rows:
        """Return the rows that writes and committed transactions have, executed by their times."""
        done = [(e.stamp, e.op[1]) for e in self._log(name) if e.op[0] == "write"]
        for txn, row in self.rows.items():
            if name in row.tablets:
                done.append((row.at, self.world.clients[txn].content.meant[name]))
        rows = Rows()
        for at, ops in sorted(done, key=lambda d: d[0]):
            rows.run(at, ops)
        return rows

    def _check_tablet(self, name: str) -> None:
        """All members have the serial execution, and the feeds are its changes in order."""
        serial = self.serial[name].versions
        for r in self.world.groups[name].replicas:
            if name not in self.dropped and r.state.rows.versions != serial:
                raise Broken(f"{name}: the rows are not those of the operations by their times")
        for (tablet, kind), (upto, fed) in self.history.feeds.items():
            if tablet == name:
                wanted = sorted(self.serial[name].changes(0, upto), key=lambda c: c[:2])
                if sorted(fed, key=lambda c: c[:2]) != wanted:
                    raise Broken(
                        f"{name}: the changes of {kind} reads up to {upto} are not complete"
                    )

    def _check_decisions(self) -> None:
        """A row has a prepare of its attempt at every participant, all of which exist; C is above all."""
        for name in self.world.tablets:
            prepared = {e.op[1:3]: e.stamp for e in self._log(name) if e.op[0] == "prepare"}
            for txn, row in self.rows.items():
                if name not in row.tablets:
                    continue
                if (txn, row.attempt) not in prepared:
                    raise Broken(f"{txn} is committed, and {name} has no prepare of {row.attempt}")
        gone: set[str] = set()
        for entry in self._log("catalog"):
            if entry.op[0] == "drop_tablet":
                gone.add(entry.op[1])
            elif entry.op[0] == "commit" and gone & set(entry.op[2].tablets):
                raise Broken(f"{entry.op[1]} is committed after a participant was dropped")
        for step, mark in self.history.marks:
            for txn, row in self.rows.items():
                if row.at <= mark and self.history.removals.get(txn, NEVER) > step:
                    raise Broken(f"the mark {mark} of a prepare is above the row of {txn}")

    def _check_keys(self) -> None:
        """A key takes effect once; epochs of a query are complete and in order, queries do not return."""
        jobs: dict[str, str] = {}
        streams: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for txn, row in sorted(self.rows.items(), key=lambda r: r[1].at):
            match row.key:
                case JobKey(name):
                    if name in jobs:
                        raise Broken(f"key {name} takes effect twice: {jobs[name]} and {txn}")
                    jobs[name] = txn
                case StreamKey(name, query, epoch, _):
                    streams[name].append((query, epoch))
        for name, epochs in streams.items():
            done: dict[int, int] = {}
            last = None
            for query, epoch in epochs:
                if epoch != done.get(query, -1) + 1 or (query in done and query != last):
                    raise Broken(f"{name}: epoch {epoch} of query {query} after {done}")
                done[query] = epoch
                last = query

    def _check_answers(self) -> None:
        """Every read is what the history says of its time; a denied transaction has no row."""
        for read in self.history.reads:
            wanted = self.serial[read.tablet].at(read.at)
            if wanted != read.rows:
                raise Broken(
                    f"{read.kind} at {read.at} of {read.tablet} is {read.rows}, then {wanted}"
                )
        for txn in self.history.denials:
            if txn in self.rows:
                raise Broken(f"{txn} was denied, and is committed at {self.rows[txn].at}")

    def _check_fresh(self) -> None:
        """A fresh read contains what was acknowledged, or seen by a look-up, before it began."""
        seen = self._first_seen()
        for read in self.history.reads:
            if not read.fresh:
                continue
            for ack in self.history.acks:
                if ack.step < read.begun and ack.at > read.at and read.tablet in ack.tablets:
                    raise Broken(
                        f"{read.kind} at {read.at} lacks {ack.name}, acknowledged at {ack.at}"
                    )
            if read.kind == "look-up":
                for txn, row in self.rows.items():
                    early = seen.get(txn, NEVER) < read.begun and row.at > read.at
                    if early and read.tablet in row.tablets:
                        raise Broken(f"look-up at {read.at} lacks {txn}, seen at {row.at} before")

    def _first_seen(self) -> dict[str, int]:
        """Return the step in which each transaction was first part of an answer."""
        seen: dict[str, int] = {}
        for read in self.history.reads:
            for txn, row in self.rows.items():
                if read.at >= row.at and read.tablet in row.tablets:
                    seen[txn] = min(seen.get(txn, NEVER), read.ended)
        return seen
