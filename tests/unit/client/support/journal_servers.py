"""Servers of one journal in memory, behind the RPC interface: a master, a leader and followers that lag."""

import asyncio
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from nyala.common.errors import (
    NOT_SENT,
    NotFound,
    NotLeader,
    NyalaError,
    Throttled,
    TimedOut,
    Unavailable,
)
from nyala.journal import steps
from nyala.journal.changes import RecentChanges
from nyala.journal.state import JournalState
from nyala.tserver.journals import answers, messages
from nyala.wire import methods, status
from nyala.wire.proto import journal_pb2, nyala_pb2
from tests.sim.world.loop import SimLoop

MASTER = "127.0.0.1:9"
ADDRESSES = ("127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3")
FIRST_STAMP = 1000
TABLET = "a" * 32


class NoObserver:
    """Writes nothing to disk."""

    def appended(self, *_: object) -> None: ...
    def invalidated(self, *_: object) -> None: ...
    def dropped(self, *_: object) -> None: ...
    def key_changed(self, *_: object) -> None: ...


@dataclass
class Member:
    """One replica.

    Attributes:
        applied: number of steps of the group that it has applied.
        frozen: it applies nothing more.
        down: it cannot be reached.
        silent: it does not answer requests of tails.
        hung: it does not answer calls.
    """

    limit_bytes: int
    state: JournalState = field(init=False)
    applied: int = 0
    frozen: bool = False
    down: bool = False
    silent: bool = False
    hung: bool = False
    wake: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.state = JournalState(NoObserver(), limit_bytes=self.limit_bytes)

    def forget(self) -> None:
        """Drop the changes in memory, as a restart does."""
        self.state.recent = RecentChanges(self.state.last)


@dataclass
class Fault:
    """An answer that a call gets in place of the server's; after: it is executed first."""

    error: NyalaError
    after: bool = False


class JournalServers:
    """The RPC interface of a client towards them. Used on one loop.

    Args:
        loop: virtual time.
        limit_bytes: of the journal.

    Attributes:
        group: steps that were executed, in order.
        asked: address and request of each call that named the journal's tablet.
        step_faults: of the next calls of Step and Steps.
        read_faults: of the next calls of Read.
        tail_faults: of the next requests of Tail; each ends the stream.
        named: address that a member names as the leader in a refusal, if not the real one's; None: no one.
        tail_answers: errors that the next requests of Tail get as their answers.
        streams: streams that were opened.
    """

    def __init__(self, loop: SimLoop, limit_bytes: int = 1 << 30) -> None:
        self._loop = loop
        self._rng = random.Random(3)
        self.members = {a: Member(limit_bytes) for a in ADDRESSES}
        self.leader = ADDRESSES[0]
        self.known_leader = ADDRESSES[0]  # by the master
        self.named: dict[str, str | None] = {}
        self.tablet = TABLET
        self.dropped = False
        self.group: list[steps.Step] = []
        self.results: dict[tuple[bytes, int], list[steps.Result]] = {}
        self.asked: list[tuple[str, Any]] = []
        self.step_faults: list[Fault | None] = []
        self.read_faults: list[Fault | None] = []
        self.tail_faults: list[Fault | None] = []
        self.tail_answers: list[NyalaError] = []
        self.streams: list[_Stream] = []

    def lead(self, address: str) -> None:
        """Elect another leader, which applies all steps first."""
        self.members[address].frozen = False
        self.leader = address
        self.catch_up()

    def catch_up(self) -> None:
        """Apply all steps at the members that apply any."""
        for member in self.members.values():
            if member.frozen:
                continue
            while member.applied < len(self.group):
                number = member.applied
                member.state.apply(self.group[number], FIRST_STAMP + 10 * number)
                member.applied += 1
            member.wake.set()

    @property
    def state(self) -> JournalState:
        """State of the leader."""
        return self.members[self.leader].state

    def execute(self, step: steps.Step) -> steps.Result:
        """Execute a step at the leader, and at the members that follow it."""
        stamp = FIRST_STAMP + 10 * len(self.group)
        leader = self.members[self.leader]
        self.group.append(step)
        result = leader.state.apply(step, stamp)
        leader.applied += 1
        self.catch_up()
        return result

    async def call(self, address: str, method: Any, request: Any, *, timeout_ms: int) -> Any:
        """See `Rpc.call`."""
        await self._loop.delay(1_000)
        if address == MASTER:
            return self._master(method, request)
        if method not in (methods.JOURNAL_STEP, methods.JOURNAL_STEPS, methods.JOURNAL_READ):
            raise Unavailable("not here", NOT_SENT)
        self.asked.append((address, type(request).FromString(request.SerializeToString())))
        if self.members[address].hung:
            await self._loop.delay(timeout_ms * 1000)
            raise TimedOut("no answer in time")
        faults = self.read_faults if method is methods.JOURNAL_READ else self.step_faults
        fault = faults.pop(0) if faults else None
        if fault is not None and not fault.after:
            raise fault.error
        self._check_up(address, request.tablet_id)
        if method is methods.JOURNAL_STEP:
            answer: Any = self._step(address, request)
        elif method is methods.JOURNAL_STEPS:
            answer = self._batch(address, request)
        else:
            answer = self._read(address, request)
        if fault is not None:
            raise fault.error
        return answer

    def _master(self, method: Any, request: Any) -> Any:
        if method is methods.DESCRIBE_TABLE:
            if self.dropped or request.name not in ("", "j"):
                raise answered(NotFound("no such journal"))
            assert request.kind == 1, request
            spec = nyala_pb2.TableSpec(name="j", kind=1, replicas=3)
            return nyala_pb2.DescribeTableResponse(
                id="b" * 32, state="RUNNING", ready=True, table=spec
            )
        if method is methods.LIST_TABLES:
            return nyala_pb2.ListTablesResponse(
                tables=[nyala_pb2.TableSummary(id="b" * 32, name="j")]
            )
        if method is methods.TABLET_LOCATIONS:
            if self.dropped:
                raise answered(NotFound("it was dropped"))
            replicas = [
                nyala_pb2.ReplicaLocation(uuid=str(n), address=a, leader=a == self.known_leader)
                for n, a in enumerate(ADDRESSES)
            ]
            place = nyala_pb2.TabletLocation(id=self.tablet, replicas=replicas, state="RUNNING")
            return nyala_pb2.TabletLocationsResponse(tablets=[place])
        raise Unavailable("not here", NOT_SENT)

    def _check_up(self, address: str, tablet_id: str) -> None:
        if self.members[address].down:
            raise Unavailable("connection refused", NOT_SENT)
        if tablet_id != self.tablet:
            raise answered(Unavailable("no such tablet here"))

    def _check_leader(self, address: str) -> None:
        if address != self.leader:
            named = self.named.get(address, self.leader)
            raise answered(NotLeader("not the leader", {"address": named} if named else {}))

    def _step(self, address: str, request: journal_pb2.JournalStepRequest) -> Any:
        (result,), duplicate = self._once(address, request, [request])
        response = messages.result_to_proto(result)
        response.timestamp, response.duplicate = FIRST_STAMP, duplicate
        return response

    def _batch(self, address: str, request: journal_pb2.JournalStepsRequest) -> Any:
        results, duplicate = self._once(address, request, request.steps)
        return journal_pb2.JournalStepsResponse(
            results=[messages.result_to_proto(r) for r in results],
            timestamp=FIRST_STAMP, duplicate=duplicate,
        )  # fmt: skip

    def _once(
        self, address: str, header: Any, sent: Iterable[Any]
    ) -> tuple[list[steps.Result], bool]:
        """Execute the steps of one sequence number once."""
        self._check_leader(address)
        batch = [messages.step_from_proto(one) for one in sent]
        for step in batch:
            steps.check(step)
        number = header.client_id, header.sequence
        duplicate = number in self.results
        if not duplicate:
            self.results[number] = [self.execute(step) for step in batch]
        return self.results[number], duplicate

    def _read(
        self, address: str, request: journal_pb2.JournalReadRequest
    ) -> journal_pb2.JournalReadResponse:
        if not request.max_age_ms:
            self._check_leader(address)
        try:
            response = answers.read(self.members[address].state, request)
        except NyalaError as err:
            raise answered(err) from None
        response.at = FIRST_STAMP
        return response

    def request_stream(
        self, address: str, method: Any, on_response: Callable[[Any], None]
    ) -> "_Stream":
        """See `Rpc.request_stream`."""
        return _Stream(self, address, on_response)

    async def tail(self, address: str, request: journal_pb2.JournalTailRequest) -> Any:
        """Answer a request for changes, or raise what ends the stream."""
        self.asked.append((address, request))
        await self._loop.delay(1_000)
        fault = self.tail_faults.pop(0) if self.tail_faults else None
        if fault is not None:
            raise fault.error
        member = self.members[address]
        if member.down:
            raise Unavailable("connection refused", NOT_SENT)
        ends_us = self._loop.now_us() + request.wait_ms * 1000
        while True:
            member.wake.clear()
            try:
                self._check_up(address, request.tablet_id)
                if self.tail_answers:
                    raise self.tail_answers.pop(0)
                found = answers.tail(member.state, request, request.after)
            except NyalaError as err:
                found = journal_pb2.JournalTailResponse(error=status.to_proto(err))
            left_us = ends_us - self._loop.now_us()
            if found.HasField("error") or found.rebased or found.events or left_us <= 0:
                break
            try:
                async with asyncio.timeout(left_us / 1_000_000):
                    await member.wake.wait()
            except TimeoutError:
                continue
        if member.silent:
            await asyncio.Event().wait()
        found.request = request.request
        return found


class _Stream:
    def __init__(
        self, servers: JournalServers, address: str, on_response: Callable[[Any], None]
    ) -> None:
        self._servers, self._address, self.answer = servers, address, on_response
        servers.streams.append(self)
        self._task: asyncio.Task[None] | None = None
        self.over = False

    def send(self, request: journal_pb2.JournalTailRequest) -> None:
        copy = journal_pb2.JournalTailRequest.FromString(request.SerializeToString())
        self._task = asyncio.get_running_loop().create_task(self._run(copy))

    async def _run(self, request: journal_pb2.JournalTailRequest) -> None:
        try:
            found = await self._servers.tail(self._address, request)
        except NyalaError as err:
            self._end(err)
        else:
            if not self.over:
                self.answer(found)

    def _end(self, why: NyalaError) -> None:
        if not self.over:
            self.over = True
            self.answer(why)

    def end(self) -> None:
        self.over = True

    def abandon(self) -> None:
        if self._task is not None:
            self._task.cancel()
        self._end(Unavailable("given up"))


def answered(error: NyalaError) -> NyalaError:
    """Return an error as a server sends it."""
    error.answered = True
    return error


THROTTLED = Fault(answered(Throttled("busy", {"retry_after_ms": "20"})))
