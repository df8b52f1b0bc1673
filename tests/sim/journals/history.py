"""Checker of the histories of one journal: linearizable steps and reads, and reads of followers.

Each change carries a growing id, which is its position in the order of all changes. So no order is searched:
steps are taken by their ids and executed by the model; each answer that changed nothing (a read, a failed
condition) is compared with the states between the steps that were answered before it was sent, and those
that were sent after its answer.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TypeVar

from nyala.journal import reads, steps
from tests.unit.journal.journal_model import UNLIMITED, Model, ModelLog

T = TypeVar("T")
OPEN = float("inf")


@dataclass(frozen=True, slots=True)
class ReadLog:
    """Read of one page of a log; `created`: the log that the reader knows, 0: it knows none."""

    log: str
    created: int = 0
    after: int = 0
    through: int = 0
    limit: int = 0


@dataclass(frozen=True, slots=True)
class GetKey:
    """Read of one key."""

    key: str


@dataclass(frozen=True, slots=True)
class ListKeys:
    """Read of the keys with a prefix."""

    prefix: str


@dataclass(frozen=True, slots=True)
class ListLogs:
    """Read of the names of logs."""


Query = ReadLog | GetKey | ListKeys | ListLogs
GONE = "the log was deleted"
"""Answer to a read of a log that was deleted."""


@dataclass(frozen=True, slots=True)
class Op:
    """One operation of a client.

    Attributes:
        client: name of the client.
        call: time at which it began.
        ret: time of its answer; OPEN: none came, and the effect of the step is known from elsewhere.
        what: the step, or what was read.
        answer: result of the step, or content that was read.
        least: id that a state read at a follower includes.
        since: a follower's state includes all that was answered before this time; None: a linearizable read.
    """

    client: str
    call: float
    ret: float
    what: steps.Step | Query
    answer: object
    least: int = 0
    since: float | None = None

    @property
    def first_id(self) -> int:
        """Id of the step's first change; 0: it changed nothing."""
        if not isinstance(self.answer, steps.Done):
            return 0
        return next((i for i in self.answer.ids if i), 0)


class JournalViolation(AssertionError):
    """An answer that no order of the operations explains."""


@dataclass(slots=True)
class LogView:
    """A log after some change."""

    created: int
    last: int
    entries: dict[int, bytes]


@dataclass(slots=True)
class LogHistory:
    """Changes of one log, by the id of its creation.

    Attributes:
        appended: data of each entry.
        invalidated: id of the change that invalidated it, of each entry that was.
        invalidations: ids of the entries that each change invalidated.
        deleted: id of the change that deleted the log; 0: none did.
    """

    name: str
    appended: dict[int, bytes] = field(default_factory=dict)
    invalidated: dict[int, int] = field(default_factory=dict)
    invalidations: dict[int, tuple[int, ...]] = field(default_factory=dict)
    deleted: int = 0


class Timeline:
    """All states of a journal, one for each step that changed it.

    Args:
        effects: the steps that changed it, by their ids.
        sized: sizes are needed, since some steps were refused by a full journal.

    Raises:
        JournalViolation: a step's answer is not what the model gives at its position.
    """

    def __init__(self, effects: Sequence[Op], *, sized: bool = False) -> None:
        self.effects = effects
        self.sizes = [0]  # in bytes, by position
        self.logs: dict[str, list[tuple[int, LogView | None]]] = {}
        self.keys: dict[str, list[tuple[int, tuple[int, bytes] | None]]] = {}
        self.histories: dict[int, LogHistory] = {}
        self.key_changes: dict[int, tuple[str, bytes | None]] = {}
        self.model = Model()
        for position, op in enumerate(effects, 1):
            self._take(position, op)
            if sized:
                self.sizes.append(self.model.size_bytes)
        by_ret = sorted((op.ret, n) for n, op in enumerate(effects, 1))
        self._rets = [ret for ret, _ in by_ret]
        self._seen = [0, *accumulate((n for _, n in by_ret), max)]
        by_call = sorted((op.call, n) for n, op in enumerate(effects))
        self._calls = [call for call, _ in by_call]
        unseen = list(accumulate((n for _, n in reversed(by_call)), min))
        self._unseen = [*reversed(unseen), len(effects)]
        self._first_ids = [op.first_id for op in effects]

    def _take(self, position: int, op: Op) -> None:
        step, model = op.what, self.model
        assert isinstance(step, steps.Step)
        result = model.apply(steps.Step(step.conditions, ()), op.first_id)
        if isinstance(result, steps.Done):
            ids = [self._change(change, op.first_id) for change in step.changes]
            result = steps.Done(ids)
        assert isinstance(op.answer, steps.Done)
        given = steps.Done(list(op.answer.ids))
        if result != given:
            raise JournalViolation(f"{text(op)}: the model at its position gives {result}")
        for name in {
            c.log for c in step.changes if not isinstance(c, steps.SetKey | steps.DeleteKey)
        }:
            log = model.logs.get(name)
            view = None if log is None else LogView(log.created, log.last, dict(log.entries))
            self.logs.setdefault(name, []).append((position, view))
        for key in {c.key for c in step.changes if isinstance(c, steps.SetKey | steps.DeleteKey)}:
            self.keys.setdefault(key, []).append((position, model.keys.get(key)))

    def _change(self, change: steps.Change, stamp: int) -> int:
        """Make one change of a step; return its id."""
        model, name = self.model, getattr(change, "log", "")
        before = model.logs.get(name)
        valid = dict(before.entries) if before is not None else {}
        result = model.apply(steps.Step((), [change]), stamp)
        assert isinstance(result, steps.Done)
        (new_id,) = result.ids
        if isinstance(change, steps.SetKey | steps.DeleteKey) and new_id:
            value = change.value if isinstance(change, steps.SetKey) else None
            self.key_changes[new_id] = (change.key, value)
        if not name or not new_id:
            return new_id
        log = model.logs.get(name)
        if log is None:
            assert before is not None
            self.histories[before.created].deleted = new_id
            return new_id
        history = self.histories.setdefault(log.created, LogHistory(name))
        if isinstance(change, steps.Append):
            history.appended[new_id] = change.data
        gone = tuple(i for i in valid if i not in log.entries)
        if gone:
            history.invalidations[new_id] = gone
            history.invalidated.update(dict.fromkeys(gone, new_id))
        return new_id

    def seen_at(self, time: float) -> int:
        """Return the least position of a state that includes all steps answered before a time."""
        return self._seen[bisect_left(self._rets, time)]

    def last_at(self, time: float) -> int:
        """Return the largest position of a state without the steps that were sent after a time."""
        return self._unseen[bisect_right(self._calls, time)]

    def position_of(self, change_id: int) -> int:
        """Return the least position of a state that includes a change."""
        return bisect_right(self._first_ids, change_id)

    def state(self, position: int, logs: Iterable[str], keys: Iterable[str]) -> Model:
        """Return a part of the state at a position.

        Args:
            position: number of steps that it includes.
            logs: names of logs.
            keys: names of keys.
        """
        model = Model()
        model.last = (1 << 63) - 1
        for name in logs:
            view = _at(self.logs.get(name, ()), position)
            if view is not None:
                model.logs[name] = ModelLog(view.created, view.last, dict(view.entries))
        for key in keys:
            found = _at(self.keys.get(key, ()), position)
            if found is not None:
                model.keys[key] = found
        return model

    def answer(
        self, what: steps.Step | Query, position: int, limit_bytes: int = UNLIMITED
    ) -> object:
        """Return the answer of the state at a position.

        Args:
            what: the step, or what is read.
            position: number of steps that the state includes.
            limit_bytes: of the journal; only if sizes are known.
        """
        if isinstance(what, steps.Step):
            parts = (*what.conditions, *what.changes)
            logs = {p.log for p in parts if hasattr(p, "log")}
            keys = {p.key for p in parts if hasattr(p, "key")}
            model = self.state(position, logs, keys)
            model.limit_bytes = limit_bytes
            if limit_bytes < UNLIMITED:
                model.other_bytes = self.sizes[position] - model.size_bytes
            return model.apply(what, 0)
        if isinstance(what, ReadLog):
            return page_of(_at(self.logs.get(what.log, ()), position), what)
        if isinstance(what, GetKey):
            return _at(self.keys.get(what.key, ()), position)
        if isinstance(what, ListKeys):
            names = sorted(k for k in self.keys if k.startswith(what.prefix))
            found = ((k, _at(self.keys[k], position)) for k in names)
            return tuple((k, *value) for k, value in found if value is not None)
        views = ((n, _at(self.logs[n], position)) for n in sorted(self.logs))
        return tuple((n, v.created, v.last, len(v.entries)) for n, v in views if v is not None)


def page_of(view: LogView | ModelLog | None, what: ReadLog) -> object:
    """Return (created, last, entries, whether there are more), or GONE."""
    if what.created and (view is None or view.created != what.created):
        return GONE
    if view is None:
        return 0, 0, (), False
    through = what.through or view.last
    entries = [(i, d) for i, d in view.entries.items() if what.after < i <= through]
    most = min(what.limit or reads.PAGE_ITEMS, reads.PAGE_ITEMS)
    return view.created, view.last, tuple(entries[:most]), len(entries) > most


def _at(versions: Sequence[tuple[int, T | None]], position: int) -> T | None:
    at = bisect_right(versions, position, key=lambda version: version[0])
    return versions[at - 1][1] if at else None


def check(ops: Iterable[Op]) -> Timeline:
    """Check one journal's history; return its states.

    Raises:
        JournalViolation: an answer that no order explains.
    """
    all_ops = list(ops)
    effects = sorted((op for op in all_ops if op.first_id), key=lambda op: op.first_id)
    timeline = Timeline(effects, sized=any(isinstance(op.answer, steps.Full) for op in all_ops))
    newest: Op | None = None  # of the steps so far, the one that was sent last
    for op in effects:
        if newest is not None and op.ret < newest.call:
            raise JournalViolation(f"{text(op)} was answered before {text(newest)} was sent")
        if newest is None or op.call > newest.call:
            newest = op
    others = sorted((op for op in all_ops if not op.first_id), key=lambda op: op.ret)
    rets: list[float] = []
    reached: list[int] = []  # largest position of an answer up to each of `rets`
    for op in others:
        least = timeline.seen_at(op.call)
        if op.since is None:
            earlier = bisect_left(rets, op.call)
            least = max(least, reached[earlier - 1] if earlier else 0)
        else:
            least = max(timeline.seen_at(op.since), timeline.position_of(op.least))
        found = _fitting(timeline, op, least)
        if op.since is None:
            rets.append(op.ret)
            reached.append(max(found, reached[-1] if reached else 0))
    return timeline


def _fitting(timeline: Timeline, op: Op, least: int) -> int:
    """Return the first position whose state gives an operation's answer."""
    most = timeline.last_at(op.ret)
    wanted = op.answer
    if isinstance(wanted, steps.Done):
        wanted = steps.Done(list(wanted.ids))
    limit_bytes = wanted.limit_bytes if isinstance(wanted, steps.Full) else UNLIMITED
    for position in range(least, most + 1):
        if timeline.answer(op.what, position, limit_bytes) == wanted:
            return position
    tried = [
        f"  after {n}: {timeline.answer(op.what, n, limit_bytes)}" for n in range(least, most + 1)
    ]
    raise JournalViolation(
        f"{text(op)}: no state from {least} to {most} answers that:\n"
        + "\n".join(tried[:4] + tried[-2:])
    )


def text(op: Op) -> str:
    """Return an operation as a line."""
    return f"{op.client} {op.call:.6f}..{op.ret:.6f} {op.what} -> {op.answer}"[:2000]
