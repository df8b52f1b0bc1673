"""One client of a journal: its steps and reads, recorded as operations of a history."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

from nyala.client.cluster.tablet_cache import TabletCache, TabletLocation
from nyala.client.core import ClientOptions
from nyala.client.journal.core import JournalCore
from nyala.client.journal.locations import OpenJournal
from nyala.client.write.sequencer import Sequences
from nyala.common.errors import (
    ConditionFailed,
    JournalFull,
    LogGone,
    NotFound,
    OutcomeUnknown,
    Retryable,
    SessionExpired,
    Unavailable,
)
from nyala.common.ids import ServerUuid, TableId, TabletId
from nyala.env.clock import HybridClock, random_id
from nyala.env.env import Env
from nyala.journal import steps
from nyala.wire.proto import journal_pb2 as pb
from tests.sim.journals.history import (
    GONE,
    OPEN,
    GetKey,
    ListKeys,
    ListLogs,
    Op,
    Query,
    ReadLog,
    Timeline,
    check,
)
from tests.sim.journals.order import JournalOrder
from tests.sim.journals.tails import Following, check_tail, check_watch
from tests.sim.world.loop import SimLoop

OPTIONS = ClientOptions(timeout_ms=12_000)
KINDS = {steps.Done: "step", steps.Failed: "failed condition", steps.Full: "full"}
"""Names of the results of steps in counts."""
MAX_SKEW_S = 10.0
"""Largest difference of two clocks, which reads of followers depend on, in seconds."""


@dataclass(slots=True)
class JournalHistory:
    """Everything that clients saw of one journal.

    Attributes:
        tablet: the journal's.
        ops: answered operations; steps with unknown outcome have no answer.
        refused: payloads of steps that surely had no effect.
        sent: payloads of all steps.
        tails: what readers of logs received.
        watches: what readers of keys received.
        crossed: payload and result of each step that was answered after its tablet had been replaced.
        done: number of operations by kind.
    """

    tablet: TabletId
    ops: list[Op] = field(default_factory=list)
    refused: list[bytes] = field(default_factory=list)
    sent: dict[bytes, None] = field(default_factory=dict)
    tails: list[Following] = field(default_factory=list)
    watches: list[Following] = field(default_factory=list)
    crossed: list[tuple[bytes, steps.Result]] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)

    @property
    def acknowledged(self) -> int:
        """Number of steps that took effect and were acknowledged."""
        return self.done["step"]

    def check(self, order: JournalOrder) -> Timeline:
        """Check the whole history; the order determines which steps with unknown outcome took effect.

        Raises:
            AssertionError: with the values.
        """
        for payload in self.refused:
            result = order.results.get(payload)
            assert result is None, f"refused without effect, and applied: {payload!r} {result}"
        for payload in order.results:
            assert payload in self.sent, f"no client has sent {payload!r}"
        timeline = check(filter(None, (self._settled(op, order) for op in self.ops)))
        for following in self.tails:
            check_tail(following, timeline)
        for following in self.watches:
            check_watch(following, timeline)
        return timeline

    def _settled(self, op: Op, order: JournalOrder) -> Op | None:
        """Return an operation with its outcome; None: it had no effect."""
        if not isinstance(op.what, steps.Step):
            return op
        result = order.results.get(steps.encode_step(op.what))
        if op.answer is None:
            return replace(op, answer=result) if isinstance(result, steps.Done) else None
        assert result == op.answer, f"{op} was answered, and applied with {result}"
        return op


def check_replaced(
    histories: Sequence[JournalHistory], orders: Mapping[TabletId, JournalOrder]
) -> None:
    """Check a journal over replacements of its tablet: ids only grow, and each answer is of one of both.

    Args:
        histories: of its tablets, the first one first.
        orders: what the replicas of each tablet applied; none of one that was never written to.

    Raises:
        AssertionError: with the values.
    """
    for old, new in pairwise(histories):
        before, after = orders.get(old.tablet), orders.get(new.tablet)
        last = before.model.last if before is not None else 0
        of_old = before.results if before is not None else {}
        of_new = after.results if after is not None else {}
        ids = [i for r in of_new.values() if isinstance(r, steps.Done) for i in r.ids if i]
        again = [i for i in ids if i <= last]
        assert not again, f"ids {again[:5]}, and the tablet that was replaced had reached {last}"
        for payload, result in old.crossed:
            found = of_old.get(payload), of_new.get(payload)
            assert result in found, f"{payload!r} was answered {result}, and applied with {found}"


class StaticCache(TabletCache):
    """Locations of a group without masters: they never change."""

    def __init__(self, env: Env) -> None:
        masters: Any = SimpleNamespace(now_us=env.clock.monotonic_us)
        super().__init__(masters)

    async def ask(self, *_: Any, **__: Any) -> Any:
        """Find nothing."""
        raise Unavailable("there are no masters")


def core_without_masters(env: Env, options: ClientOptions = OPTIONS) -> JournalCore:
    """Return a client of journals that knows no masters."""
    core: Any = SimpleNamespace(
        env=env,
        options=options,
        clock=HybridClock(env.clock),
        masters=None,
        locations=StaticCache(env),
        session=SimpleNamespace(sequences=Sequences(keep_results=False)),
        client_id=bytes.fromhex(random_id(env.random)),
        ddl=None,
    )
    return JournalCore(core)


def opened_without_masters(tablet: TabletId, addresses: Sequence[str]) -> OpenJournal:
    """Return a journal whose replicas are at these addresses."""
    replicas = tuple((ServerUuid(f"{n:032x}"), a) for n, a in enumerate(addresses))
    location = TabletLocation(tablet, None, replicas)  # type: ignore[arg-type]
    return OpenJournal(TableId(tablet), "ops", len(replicas), {}, location)


class JournalClient:
    """One client of one journal. Steps are unique by a condition that always holds.

    Args:
        loop: virtual time.
        core: sends requests.
        journal: opened by it.
        history: receives the operations.
        name: name of the client, unique among those of the history.
        successor: returns the history of the tablet by which the journal's was replaced.
    """

    def __init__(
        self,
        loop: SimLoop,
        core: JournalCore,
        journal: OpenJournal,
        history: JournalHistory,
        name: str,
        successor: Callable[[OpenJournal], JournalHistory] | None = None,
    ) -> None:
        self.loop = loop
        self.core = core
        self.journal = journal
        self.history = history
        self.name = name
        self._successor = successor
        self._number = 0

    @property
    def replaced(self) -> bool:
        """True if the journal's tablet is no longer that of the history."""
        return self.journal.tablet.id != self.history.tablet

    async def step(self, step: steps.Step) -> steps.Result | None:
        """Send a step; return its result, or None if its outcome is unknown or it was refused.

        Raises:
            NotFound: the journal was dropped.
        """
        self._number += 1
        nonce = steps.KeyVersion(f"nonce/{self.name}/{self._number}", 0)
        step = steps.Step([*step.conditions, nonce], step.changes)
        history, call, payload = self.history, self.loop.time(), steps.encode_step(step)
        history.sent[payload] = None
        result: steps.Result | None = None
        refused = False
        conditions = [_condition(c) for c in step.conditions]
        try:
            outcome = await self.core.step(
                self.journal, conditions, [_change(c) for c in step.changes]
            )
            result = steps.Done(list(outcome.ids))
        except ConditionFailed as err:
            result = steps.Failed(int(err.details["condition"]), int(err.details["actual"]))
        except JournalFull as err:
            result = steps.Full(int(err.details["bytes"]), int(err.details["limit"]))
        except (OutcomeUnknown, SessionExpired):
            history.done["unknown"] += 1
        except NotFound:
            refused = True
            raise
        except Retryable:
            refused = True
            history.done["refused"] += 1
        finally:
            self._record(Op(self.name, call, self.loop.time(), step, result), payload, refused)
        return result

    def _record(self, op: Op, payload: bytes, refused: bool) -> None:
        """Add a step to the history, or to those of both tablets if the first was replaced meanwhile."""
        history, result = self.history, op.answer
        both = [history]
        if self.replaced and self._successor is not None:
            both.append(self._successor(self.journal))
        if refused:
            for one in both:
                one.refused.append(payload)
        elif len(both) > 1 or result is None:
            for one in both:  # the order of each shows whether it took effect there
                one.ops.append(replace(op, ret=OPEN, answer=None))
        else:
            history.ops.append(op)
        if isinstance(result, steps.Done | steps.Failed | steps.Full):
            history.done[KINDS[type(result)]] += 1
            if len(both) > 1:
                history.crossed.append((payload, result))
                history.done["crossed"] += 1

    async def read(self, what: Query, max_age_ms: int = 0) -> object:
        """Read something; return the answer, or None if there was none in time.

        Raises:
            NotFound: the journal was dropped.
        """
        call, least = self.loop.time(), self.journal.seen
        since = call - max_age_ms / 1000 - MAX_SKEW_S if max_age_ms else None
        try:
            found = await self.core.reads.read(self.journal, _request(what), max_age_ms=max_age_ms)
            answer = _answer(what, found)
        except LogGone:
            answer = GONE
        except (Retryable, OutcomeUnknown):
            self.history.done["no answer"] += 1
            return None
        if self.replaced:
            return None  # either tablet may have answered
        op = Op(self.name, call, self.loop.time(), what, answer, least if max_age_ms else 0, since)
        self.history.ops.append(op)
        self.history.done["stale read" if max_age_ms else "read"] += 1
        return answer


def _request(what: Query) -> pb.JournalReadRequest:
    match what:
        case ReadLog():
            log = pb.ReadLog(
                log=what.log, created=what.created, after=what.after, through=what.through,
                limit=what.limit,
            )  # fmt: skip
            return pb.JournalReadRequest(log=log)
        case GetKey(key=key):
            return pb.JournalReadRequest(key=key)
        case ListKeys(prefix=prefix):
            return pb.JournalReadRequest(keys=pb.ListKeys(prefix=prefix))
        case ListLogs():
            return pb.JournalReadRequest(logs=pb.ListLogs())


def _answer(what: Query, found: pb.JournalReadResponse) -> object:
    match what:
        case ReadLog():
            page = found.log
            entries = tuple((e.id, e.data) for e in page.entries)
            return page.created, page.last, entries, page.more
        case GetKey():
            keys = [(k.version, k.value) for k in found.keys.keys]
            return keys[0] if keys else None
        case ListKeys():
            assert not found.keys.more
            return tuple((k.key, k.version, k.value) for k in found.keys.keys)
        case ListLogs():
            assert not found.logs.more
            return tuple((g.name, g.created, g.last, g.entries) for g in found.logs.logs)


def _condition(condition: steps.Condition) -> pb.JournalCondition:
    match condition:
        case steps.LogLast(log=log, id=wanted):
            return pb.JournalCondition(log_last=pb.LogId(log=log, id=wanted))
        case steps.LogCreated(log=log, id=wanted):
            return pb.JournalCondition(log_created=pb.LogId(log=log, id=wanted))
        case steps.KeyVersion(key=key, version=version):
            return pb.JournalCondition(key_version=pb.KeyVersion(key=key, version=version))


def _change(change: steps.Change) -> pb.JournalChange:
    match change:
        case steps.Append(log=log, data=data, invalidates=ids):
            entry = pb.AppendEntry(log=log, data=data, invalidates=ids)
            return pb.JournalChange(append=entry)
        case steps.Invalidate(log=log, ids=ids):
            return pb.JournalChange(invalidate=pb.InvalidateEntries(log=log, ids=ids))
        case steps.SetKey(key=key, value=value):
            return pb.JournalChange(set=pb.SetKey(key=key, value=value))
        case steps.DeleteKey(key=key):
            return pb.JournalChange(delete_key=key)
        case steps.DeleteLog(log=name):
            return pb.JournalChange(delete_log=name)
