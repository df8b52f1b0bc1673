"""Delivery of steps to the leader of a journal, with the same bytes at each try, until they are answered.

A tablet executes each sequence number of a client once (`client/write/sequencer.py`), so a step that is sent
again takes effect once, and a retry gets the first result.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from nyala.client.cluster.leader_operation import (
    TRY_TIMEOUT_MS,
    LeaderOperation,
    TabletReplaced,
    Texts,
)
from nyala.client.deadline import Attempts
from nyala.client.journal.combining import StepCombiner
from nyala.client.journal.locations import JournalLocations, OpenJournal
from nyala.client.write.sequencer import Sequences
from nyala.common.errors import ConditionFailed, JournalFull, OutcomeUnknown
from nyala.env.clock import HybridClock
from nyala.env.env import Env
from nyala.wire import methods
from nyala.wire.proto import journal_pb2 as pb

Request = pb.JournalStepRequest | pb.JournalStepsRequest
Response = pb.JournalStepResponse | pb.JournalStepsResponse


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """Result of a step that took effect.

    Attributes:
        ids: ids of its changes, in their order; 0: there was nothing to delete.
        timestamp: hybrid time of the step.
    """

    ids: tuple[int, ...]
    timestamp: int


class StepDelivery:
    """Steps of one client. Runs on the client's loop.

    Args:
        env: RPCs, time.
        locations: locations of journals.
        clock: its highest time is sent with each step.
        sequences: numbers of the client's operations.
        client_id: 16 bytes.
        since: hybrid time before which no process with this client id wrote; None: there is no other process.
    """

    def __init__(
        self,
        env: Env,
        locations: JournalLocations,
        clock: HybridClock,
        sequences: Sequences,
        client_id: bytes,
        since: int | None,
    ) -> None:
        self._env = env
        self._combiner = StepCombiner(env, self._deliver)
        self._locations = locations
        self._clock = clock
        self._sequences = sequences
        self._client_id = client_id
        self._since = since

    async def execute(
        self,
        journal: OpenJournal,
        conditions: Sequence[pb.JournalCondition],
        changes: Sequence[pb.JournalChange],
        timeout_ms: int,
        try_ms: int | None = None,
    ) -> StepOutcome:
        """Execute one step; with those of other callers it may share an operation, and its sequence number.

        If the journal's tablet is replaced meanwhile, which only `replace_tablet` does, the step is sent to
        its successor under a new number.

        Args:
            journal: journal of the step.
            conditions: on the state before it.
            changes: that take effect together.
            timeout_ms: for all tries.
            try_ms: for one try, of a step that shares no operation; None: the default.

        Raises:
            ConditionFailed, JournalFull, InvalidArgument, TooLarge, NotFound: it had no effect.
            OutcomeUnknown: it was not answered in time, and may have taken effect.
            SessionExpired: as OutcomeUnknown.
            TimedOut: no leader took it in time; it had no effect.
        """
        step = pb.JournalStep(conditions=conditions, changes=changes)
        if self._since is None and try_ms is None:
            response = await self._combiner.execute(journal, step, timeout_ms)
        else:  # with `since`, other processes send the same steps under the same numbers
            (response,) = await self._deliver(journal, [step], timeout_ms, try_ms)
        return self._outcome(journal, step, response)

    async def _deliver(
        self,
        journal: OpenJournal,
        batch: Sequence[pb.JournalStep],
        timeout_ms: int,
        try_ms: int | None = None,
    ) -> list[pb.JournalStepResponse]:
        """Execute some steps as one operation, under its own sequence number; return their results.

        Args:
            journal: journal of the steps.
            batch: the steps.
            timeout_ms: for all tries.
            try_ms: for one try; None: the default.
        """
        attempts = Attempts(self._env, timeout_ms)
        while True:
            to = journal.tablet.id
            sequence, first = self._sequences.begin(to)
            request = _request(batch)
            request.tablet_id, request.client_id = to, self._client_id
            request.sequence, request.first_outstanding = sequence, first
            request.since = max(1, self._clock.seen) if self._since is None else self._since
            try:
                response = await self._send(journal, request, attempts, try_ms)
            except TabletReplaced:
                continue
            finally:
                self._sequences.end(to, sequence)
            return self._results(response, len(batch))

    async def _send(
        self, journal: OpenJournal, request: Request, attempts: Attempts, try_ms: int | None
    ) -> Response:
        async def attempt(address: str, timeout_ms: int) -> Response:
            request.propagated_time, request.timeout_ms = self._clock.seen, timeout_ms
            alone = isinstance(request, pb.JournalStepRequest)
            method = methods.JOURNAL_STEP if alone else methods.JOURNAL_STEPS
            response: Response = await self._env.rpc.call(
                address, method, request, timeout_ms=timeout_ms
            )
            return response

        operation = LeaderOperation(
            self._locations.tablets,
            journal.tablet,
            request,
            attempt,
            lambda timeout_ms: self._locations.refresh_shared(journal, timeout_ms),
            lambda: self._locations.refresh_shared(journal),
            Texts(
                late=f"no leader of journal {journal.name!r} answered a step in time",
                unknown="The step may or may not take effect; another one with the same condition settles "
                "it: one of the two takes effect",
                no_effect="It had no effect; check: nyala cluster ksck",
                content="step",
            ),
            exclusive=self._since is None,
            try_ms=TRY_TIMEOUT_MS if try_ms is None else try_ms,
        )
        return await operation.send(attempts)

    def _results(self, response: Response, count: int) -> list[pb.JournalStepResponse]:
        """Return the result of each step of an operation."""
        self._clock.merge(response.timestamp)
        if isinstance(response, pb.JournalStepResponse):
            return [response]
        results = list(response.results)
        if len(results) != count:
            raise OutcomeUnknown(
                f"a server answered {len(results)} of {count} steps; they may have taken effect"
            )
        for result in results:
            result.timestamp = response.timestamp
        return results

    def _outcome(
        self, journal: OpenJournal, step: pb.JournalStep, response: pb.JournalStepResponse
    ) -> StepOutcome:
        match response.WhichOneof("result"):
            case "done":
                ids = tuple(response.done.ids)
                journal.saw(max(ids, default=0))
                return StepOutcome(ids, response.timestamp)
            case "failed":
                raise _condition_failed(step.conditions, response.failed)
            case "full":
                full = response.full
                raise JournalFull(
                    f"journal {journal.name!r} would have {full.bytes} bytes, and may have "
                    f"{full.limit_bytes}; nothing took effect. Invalidate entries, delete logs or keys, or "
                    "use a journal with a larger journal_bytes",
                    {"bytes": str(full.bytes), "limit": str(full.limit_bytes)},
                )
            case _:
                raise OutcomeUnknown(
                    "the server's answer to a step has no result that this client knows; upgrade the client"
                )


def _request(batch: Sequence[pb.JournalStep]) -> Request:
    """Return the request of some steps, without its header."""
    if len(batch) == 1:
        return pb.JournalStepRequest(conditions=batch[0].conditions, changes=batch[0].changes)
    return pb.JournalStepsRequest(steps=batch)


def _condition_failed(
    conditions: Sequence[pb.JournalCondition], failed: pb.StepFailed
) -> ConditionFailed:
    number, actual = failed.condition, failed.actual
    details = {"condition": str(number), "actual": str(actual), "last": str(actual)}
    said = f"condition {number} of the step did not hold"
    if number < len(conditions):
        said = _describe(conditions[number], actual)
    return ConditionFailed(
        f"{said}; nothing took effect. Read the new changes, and make a new step from them", details
    )


def _describe(condition: pb.JournalCondition, actual: int) -> str:
    match condition.WhichOneof("what"):
        case "key_version":
            wanted = condition.key_version
            return (
                f"key {wanted.key!r} has version {actual}, and the step requires {wanted.version}"
            )
        case "log_created":
            created = condition.log_created
            return f"log {created.log!r} was created with id {actual}, and the step requires {created.id}"
        case _:
            last = condition.log_last
            return f"the last id of log {last.log!r} is {actual}, and the step requires {last.id}"
