"""The state of a tablet as a function of its entries: rows with versions, stages, what is prepared."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.model.search import Broken
from tests.model.transactions.groups import Entry

SLICE = 2
"""Operations of one entry of a resolve."""

Attempt = tuple[int, int]
"""Term of a coordinator, and a number within it."""
Op = tuple[Any, ...]
"""`("append", key, tag)`, `("delete", key)`, or `("clear",)`, a delete of all rows."""
Value = tuple[int, ...] | None
Parts = tuple[tuple[str, int], ...]
"""Parts that count, in order, each with its number of batches."""


class Batch(NamedTuple):
    """Staged operations, and the schema's version that they were checked against."""

    version: int
    ops: tuple[Op, ...]


@dataclass(slots=True)
class Stage:
    """Staged batches of a transaction.

    Attributes:
        kept: stamp of the last STAGE or KEEP.
        attempt: the highest one so far.
        parts: batches of each part.
    """

    kept: int
    attempt: Attempt = (0, 0)
    parts: dict[str, dict[int, Batch]] = field(default_factory=dict)


class Prepared(NamedTuple):
    """A prepared transaction: its prepare time, its attempt, the parts that count."""

    at: int
    attempt: Attempt
    parts: Parts


class Rows:
    """Rows with all their versions."""

    def __init__(self) -> None:
        self.versions: dict[int, list[tuple[int, Value]]] = {}
        self.last = 0

    def live(self, key: int) -> Value:
        """Return the newest value of a key."""
        found = self.versions.get(key)
        return found[-1][1] if found else None

    def at(self, time: int) -> dict[int, Value]:
        """Return the rows at a time."""
        found: dict[int, Value] = {}
        for key, versions in self.versions.items():
            value = next((v for ins, v in reversed(versions) if ins <= time), None)
            if value is not None:
                found[key] = value
        return found

    def changes(self, since: int, upto: int) -> list[tuple[int, int, Value]]:
        """Return the versions that begin after one time, and not after another."""
        found = []
        for key, versions in self.versions.items():
            for ins, value in reversed(versions):
                if ins <= since:
                    break
                if ins <= upto:
                    found.append((key, ins, value))
        return found

    def run(self, at: int, ops: tuple[Op, ...], *, more: bool = False) -> None:
        """Execute operations at a time; `more`: others have been executed at this time.

        Raises:
            Broken: newer versions exist.
        """
        if at < self.last or (at == self.last and not more):
            raise Broken(f"versions at {at} after versions at {self.last}")
        self.last = at
        for kind, *args in ops:
            if kind == "append":
                self._put(args[0], at, (*(self.live(args[0]) or ()), args[1]))
            else:
                for key in list(self.versions) if kind == "clear" else args:
                    if self.live(key) is not None:
                        self._put(key, at, None)

    def _put(self, key: int, at: int, value: Value) -> None:
        versions = self.versions.setdefault(key, [])
        if versions and versions[-1][0] == at:
            versions.pop()
        versions.append((at, value))


class TabletState:
    """State that the entries of a tablet's log make.

    Args:
        weak: rules that are left out.

    Attributes:
        rows: the rows.
        stages: of transactions that are not applied.
        prepared: those that reads above their time wait for, and ordinary writes.
        resolving: commit time and operations that are left, of the one that is being applied.
        ended: commit times of those that are applied, above `settled`.
        over: transactions whose stage is gone; stands for the exactly-once table, which refuses a late STAGE.
        settled: no row of a decision has a commit time at or below it, or will.
        version: of the schema.
        strict: version below which a staged append lacks a column that is required now.
    """

    def __init__(self, weak: frozenset[str]) -> None:
        self.weak = weak
        self.rows = Rows()
        self.stages: dict[str, Stage] = {}
        self.prepared: dict[str, Prepared] = {}
        self.resolving: dict[str, tuple[int, tuple[Op, ...]]] = {}
        self.ended: dict[str, int] = {}
        self.over: set[str] = set()
        self.settled = self.version = self.strict = 0

    def apply(self, entry: Entry) -> Any:
        """Apply an entry; return its result."""
        kind, *args = entry.op
        return getattr(self, f"_{kind}")(entry.stamp, *args)

    def restored(self) -> None:
        """Note that the state was read from files."""
        if "files-without-stages" in self.weak:
            self.stages = {}
        if "files-without-prepares" in self.weak:
            self.prepared = {}

    def staged(self, txn: str, parts: Parts) -> tuple[Op, ...]:
        """Return the operations that a resolve applies."""
        found = self.stages[txn].parts if txn in self.stages else {}
        names = [part for part, _ in parts]
        if "all-parts" in self.weak:
            names += [part for part in sorted(found) if part not in names]
        batches = [found[n][seq] for n in names for seq in sorted(found.get(n, ()))]
        for batch in batches:
            if self._fails(batch):
                raise Broken(f"{txn} is committed, and a batch cannot be applied any more")
        return tuple(op for batch in batches for op in batch.ops)

    def _fails(self, batch: Batch) -> bool:
        return batch.version < self.strict and any(op[0] == "append" for op in batch.ops)

    # ---- entries -----------------------------------------------------------------------------------

    def _noop(self, _: int) -> None: ...

    def _write(self, stamp: int, ops: tuple[Op, ...], _: int) -> int:
        self.rows.run(stamp, ops)
        return stamp

    def _alter(self, _: int, strict: bool) -> None:
        self.version += 1
        self.strict = self.version if strict else 0

    def _stage(self, stamp: int, txn: str, part: str, seq: int, batch: Batch) -> int | None:
        """Return the stamp; None: the stage is gone."""
        if txn in self.over:
            return None
        if txn not in self.prepared:
            stage = self.stages.setdefault(txn, Stage(stamp))
            stage.kept = stamp
            stage.parts.setdefault(part, {}).setdefault(seq, batch)
        return stamp

    def _keep(self, stamp: int, txn: str) -> None:
        if txn in self.stages:
            self.stages[txn].kept = stamp

    def _drop(self, _: int, txn: str, bound: int | None) -> bool:
        """Return whether there is no stage, and will be none.

        With a bound (a stage whose time is over) only a stage that was kept last at or below it is dropped.
        """
        if txn in self.prepared and "expire-prepared" not in self.weak:
            return False
        stage = self.stages.get(txn)
        if bound is not None and (stage is None or stage.kept > bound):
            return txn in self.over
        if txn in self.ended:
            return False
        self.prepared.pop(txn, None)
        self._forget(txn)
        return True

    def _forget(self, txn: str) -> None:
        self.stages.pop(txn, None)
        self.over.add(txn)

    def _prepare(
        self, stamp: int, txn: str, attempt: Attempt, parts: Parts, settled: int
    ) -> tuple[str, int]:
        """Return `prepared` and the prepare time; or `ended`, `older`, `refused`."""
        if settled > self.settled:
            self.settled = settled
            self.ended = {t: at for t, at in self.ended.items() if at > settled}
        if txn in self.ended:
            return "ended", self.ended[txn]
        stage = self.stages.get(txn)
        if stage is not None and attempt < stage.attempt:
            return "older", 0
        if stage is None or not self._whole(stage, parts):
            if "refusal-forgotten" not in self.weak:
                self._forget(txn)
            return "refused", 0
        stage.attempt = attempt
        held = self.prepared[txn].at if txn in self.prepared else stamp
        self.prepared[txn] = Prepared(held, attempt, parts)
        return "prepared", held

    def _whole(self, stage: Stage, parts: Parts) -> bool:
        found = stage.parts
        if "partial-part" not in self.weak and any(len(found.get(p, ())) != n for p, n in parts):
            return False
        chosen = [batch for part, _ in parts for batch in found.get(part, {}).values()]
        return "schema-unchecked" in self.weak or not any(map(self._fails, chosen))

    def _unprepare(self, stamp: int, txn: str, bound: Attempt) -> None:
        stage, prepared = self.stages.get(txn), self.prepared.get(txn)
        if stage is not None:
            stage.attempt = max(stage.attempt, bound)
            stage.kept = stamp
        if prepared is None or txn in self.resolving:
            return
        if prepared.attempt <= bound or "unprepare-any" in self.weak:
            del self.prepared[txn]

    def _resolve(self, _: int, txn: str, at: int) -> None:
        if txn in self.ended or txn in self.resolving:
            return
        prepared = self.prepared.get(txn)
        if prepared is None:
            raise Broken(f"{txn} is resolved at {at}, and is not prepared")
        if prepared.at >= at:
            raise Broken(f"{txn} is committed at {at}, not above its prepare time {prepared.at}")
        self.resolving[txn] = (at, self.staged(txn, prepared.parts))
        self._apply_slice(txn, more=False)

    def _slice(self, _: int, txn: str, left: int) -> None:
        if txn in self.resolving and len(self.resolving[txn][1]) == left:
            self._apply_slice(txn, more=True)

    def _apply_slice(self, txn: str, *, more: bool) -> None:
        at, ops = self.resolving[txn]
        self.rows.run(at, ops[:SLICE], more=more)
        self.resolving[txn] = (at, ops[SLICE:])
        if len(ops) <= SLICE:
            del self.resolving[txn]
            self.prepared.pop(txn, None)
            self.stages.pop(txn, None)
            self.ended[txn] = at
            if "stage-again" not in self.weak:
                self.over.add(txn)
