"""Journals at a tablet server: steps at the leader, reads at the leader or a follower, tails anywhere.

A read or a tail sees one state of the journal: it runs in lane APPLY, between two groups of entries.
docs/internals/journal.md has the rules.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence

from nyala.common.errors import (
    InvalidArgument,
    NyalaError,
    Throttled,
    TooLarge,
    Unavailable,
)
from nyala.common.options import Options
from nyala.env.env import Env
from nyala.env.rpc import Handlers
from nyala.env.tasks import Lane
from nyala.journal import steps
from nyala.journal.journal import JournalMachine
from nyala.replica.memory import MemoryPart, MemoryTracker
from nyala.replica.status import WriteOutcome
from nyala.security.identity import user_name
from nyala.security.limits.caller_shares import CallerShares
from nyala.tserver.journals import answers, messages
from nyala.tserver.journals.resident import JournalMemory
from nyala.tserver.tablets import Tablets, replicate
from nyala.wire import methods, status
from nyala.wire.proto import journal_pb2 as pb

log = logging.getLogger(__name__)

CLIENT_ID_BYTES = 16
MAX_WAIT_MS = 5_000
"""Longest wait of one request of a tail, in milliseconds."""
MAX_WAITING = 1024
"""Maximum number of requests of tails that wait at one server."""


class JournalService:
    """Handlers of `JournalService`. On the loop only.

    Args:
        env: lanes, tasks and time.
        tablets: tablets of this server.
        memory: memory budget of this server.
        resident: memory of the journals.
        options: deadlines of requests that name none.
        shares: of each user in the bytes of steps in flight, and in the requests that wait.
    """

    def __init__(
        self,
        env: Env,
        tablets: Tablets,
        memory: MemoryTracker,
        resident: JournalMemory,
        options: Options,
        shares: CallerShares,
    ) -> None:
        self._shares = shares
        self._env = env
        self._tablets = tablets
        self._memory = memory
        self._resident = resident
        self._options = options
        self._waiting = 0

    def handlers(self) -> Handlers:
        """Return what this service answers."""
        return {
            methods.JOURNAL_STEP: self.step,
            methods.JOURNAL_STEPS: self.batch,
            methods.JOURNAL_READ: self.read,
            methods.JOURNAL_TAIL: self.tail,
        }

    async def step(self, request: pb.JournalStepRequest) -> pb.JournalStepResponse:
        """Replicate one step; answered when it is durable on a majority and applied here.

        Raises:
            InvalidArgument, TooLarge: no journal takes such a step; nothing was proposed.
            Throttled: journals have all the memory that they may have.
            Retryable, OutcomeUnknown, SessionExpired: as `Replica.write`.
        """
        step = messages.step_from_proto(request)
        steps.check(step)
        outcome = await self._replicate(request, steps.encode_step(step), [step])
        response = messages.result_to_proto(steps.decode_result(outcome.result))
        response.timestamp, response.duplicate = outcome.stamp, outcome.duplicate
        return response

    async def batch(self, request: pb.JournalStepsRequest) -> pb.JournalStepsResponse:
        """Replicate some steps as one operation; answered as `step`.

        Raises:
            InvalidArgument, TooLarge: one of them, or their number, is refused; nothing was proposed.
            NyalaError: as `step`.
        """
        if not 0 < len(request.steps) <= steps.MAX_BATCH_STEPS:
            raise InvalidArgument(
                f"the request has {len(request.steps)} steps and may have 1 to {steps.MAX_BATCH_STEPS}; "
                "send several requests"
            )
        batch = [messages.step_from_proto(one) for one in request.steps]
        for step in batch:
            steps.check(step)
        outcome = await self._replicate(request, steps.encode_batch(steps.Batch(batch)), batch)
        results = steps.decode_results(outcome.result)
        return pb.JournalStepsResponse(
            results=[messages.result_to_proto(one) for one in results],
            timestamp=outcome.stamp,
            duplicate=outcome.duplicate,
        )

    async def _replicate(
        self,
        request: pb.JournalStepRequest | pb.JournalStepsRequest,
        payload: bytes,
        batch: Sequence[steps.Step],
    ) -> WriteOutcome:
        """Replicate an operation under the client's sequence number.

        Args:
            request: names the journal and the client.
            payload: the operation.
            batch: steps of the operation.
        """
        _check_client(request)
        hosted = self._tablets.journal(request.tablet_id)
        limit = self._options.write_max_bytes
        if len(payload) > limit:
            raise TooLarge(
                f"steps of {len(payload)} bytes are over write_max_bytes ({limit}); make several steps",
                {"limit": str(limit), "size": str(len(payload))},
            )
        if hosted.replica.is_leader:  # another replica names the leader
            self._memory.check(len(payload))
            if any(isinstance(c, steps.Append | steps.SetKey) for s in batch for c in s.changes):
                self._resident.add(len(payload))
        size = len(payload)
        with (
            self._shares.writes.hold(user_name(), size),
            self._memory.hold(MemoryPart.WRITES, size),
        ):
            return await replicate(hosted.replica, payload, request, self._options.write_timeout_ms)

    async def read(self, request: pb.JournalReadRequest) -> pb.JournalReadResponse:
        """Read one state of a journal.

        Raises:
            NotLeader, TimedOut, Unavailable: as `Replica.read_point` and `stale_point`; also when this
                replica has not applied a change with the id `least` yet.
            LogGone: the log is not the one that the reader knows.
        """
        hosted = self._tablets.journal(request.tablet_id)
        timeout_ms = request.timeout_ms or self._options.read_timeout_ms
        if request.max_age_ms:
            at, _ = await hosted.replica.stale_point(request.max_age_ms, timeout_ms)
        else:
            at = await hosted.replica.read_point(None, timeout_ms)
        response = await self._env.tasks.run_brief(Lane.APPLY, _read, hosted.journal, request)
        response.at = at
        return response

    def tail(
        self, request: pb.JournalTailRequest, answer: Callable[[pb.JournalTailResponse], None]
    ) -> None:
        """Answer the changes after an id: at once if there are any, else at the next one, or without any.

        The last answer comes when the time is up. A replica that led when the request came, and is deposed
        meanwhile, answers NotLeader.
        """
        self._env.tasks.spawn(self._tail(request, answer), "tail of a journal")

    async def _tail(
        self, request: pb.JournalTailRequest, answer: Callable[[pb.JournalTailResponse], None]
    ) -> None:
        try:
            response = await self._tailed(request)
        except NyalaError as err:
            response = pb.JournalTailResponse(error=status.to_proto(err))
        except Exception as err:  # an error of one request: the stream continues
            log.error("a tail failed with an internal error", exc_info=err)
            why = f"internal error of this server ({type(err).__name__}), see its log; try another replica"
            response = pb.JournalTailResponse(error=status.to_proto(Unavailable(why)))
        response.request = request.request
        answer(response)

    async def _tailed(self, request: pb.JournalTailRequest) -> pb.JournalTailResponse:
        hosted = self._tablets.journal(request.tablet_id)
        member = hosted.replica.running_member()
        led, after = member.node.is_leader, request.after
        clock, progress = self._env.clock, asyncio.Event()
        deadline_us = clock.monotonic_us() + min(request.wait_ms, MAX_WAIT_MS) * 1000
        stop = member.on_progress(progress.set)
        try:
            while True:
                progress.clear()
                response: pb.JournalTailResponse = await self._env.tasks.run_brief(
                    Lane.APPLY, _tail, hosted.journal, request, after
                )
                if response.rebased or response.events:
                    return response
                if led and not member.node.is_leader:  # it may be partitioned from the new leader
                    raise member.admission.not_leader()
                left_ms = (deadline_us - clock.monotonic_us()) // 1000
                if left_ms <= 0:
                    return response
                after = response.through
                await self._wait(progress, left_ms)
                if self._tablets.journal(request.tablet_id) != hosted:
                    raise Unavailable(f"the replica of {request.tablet_id} was replaced; retry")
        finally:
            stop()

    async def _wait(self, progress: asyncio.Event, left_ms: int) -> None:
        """Wait until the replica has progressed, or the time is up."""
        if self._waiting >= MAX_WAITING:
            raise Throttled(
                f"{MAX_WAITING} requests wait at this server for changes of journals; follow with fewer "
                "readers, or use another replica"
            )
        self._waiting += 1
        try:
            with self._shares.tails.hold(user_name()):
                async with asyncio.timeout(left_ms / 1000):
                    await progress.wait()
        except TimeoutError:
            pass
        finally:
            self._waiting -= 1


def _read(journal: JournalMachine, request: pb.JournalReadRequest) -> pb.JournalReadResponse:
    """Read the state as of now. Lane APPLY."""
    return answers.read(journal.readable(), request)


def _tail(
    journal: JournalMachine, request: pb.JournalTailRequest, after: int
) -> pb.JournalTailResponse:
    """Return the changes as of now. Lane APPLY."""
    return answers.tail(journal.readable(), request, after)


def _check_client(request: pb.JournalStepRequest | pb.JournalStepsRequest) -> None:
    if len(request.client_id) != CLIENT_ID_BYTES or request.sequence < 1:
        raise InvalidArgument("a step needs a client_id of 16 bytes and a sequence from 1 on")
    if not 0 <= request.first_outstanding <= request.sequence:
        raise InvalidArgument(
            f"first_outstanding {request.first_outstanding} is above sequence {request.sequence}"
        )
