"""Random and mutated requests to journals are answered or refused; no server fails, replicas stay equal."""

import random
from collections import Counter
from typing import Any

import pytest
from google.protobuf.message import DecodeError

from nyala.common.errors import NyalaError
from nyala.wire import methods
from nyala.wire.proto import journal_pb2 as jb
from tests.cluster.support.direct import mutations
from tests.unit.tserver.support.journal_group import JournalGroup, entry, set_key, with_journal
from tests.unit.tserver.support.random_messages import draw

CALLS = {
    methods.JOURNAL_STEP: jb.JournalStepRequest,
    methods.JOURNAL_STEPS: jb.JournalStepsRequest,
    methods.JOURNAL_READ: jb.JournalReadRequest,
}
REQUESTS = 120
"""Requests of each type."""


async def answered(group: JournalGroup, method: Any, request: Any, number: int) -> str:
    """Send a request to one of the servers; return how it was answered."""
    servers = group.holders()
    to = servers[0] if number % 4 else servers[1]
    try:
        if method is methods.JOURNAL_TAIL:
            await group.asked(to, request)
        else:
            request.timeout_ms = min(request.timeout_ms, 5000)
            await group.ask(to, method, request)
    except NyalaError as err:
        return err.code if err.message else "an error without a message"
    return "OK"


async def unharmed(group: JournalGroup, seen: Counter[str]) -> None:
    """Make sure that all servers run, and that the journal works and is the same everywhere."""
    wrong = {"INTERNAL", "OUTCOME_UNKNOWN", "TIMED_OUT", "an error without a message"}
    assert not set(seen) & wrong, seen
    assert min(seen["OK"], seen["INVALID_ARGUMENT"]) > 10, seen
    assert all(process.alive for process in group.cluster.tservers)
    (last,) = await group.append("after")
    assert last
    assert len({(s.rows, s.checksum) for s in await group.agreed()}) == 1


@pytest.mark.parametrize("seed", range(2))
def test_random_requests_are_answered_or_refused(seed):
    async def work(group):
        rng, seen = random.Random(seed), Counter[str]()
        (first, *_, last) = await group.append("1", "2", "3")
        texts = (group.tablet, "log", "k")
        numbers = (first, last, last - 1, last + 1)
        for number in range(REQUESTS):
            for method, kind in CALLS.items():
                request = draw(rng, kind, texts, numbers)
                if number % 8:
                    request.tablet_id = group.tablet
                if hasattr(request, "client_id") and number % 5:
                    request.client_id = bytes([number % 3]) * 16
                    request.sequence = rng.choice((number + 1, request.sequence))
                    request.first_outstanding = rng.choice((0, 1, request.first_outstanding))
                    request.since = rng.choice((0, request.since))
                seen[await answered(group, method, request, number)] += 1
            tail = draw(rng, jb.JournalTailRequest, texts, numbers)
            tail.wait_ms = min(tail.wait_ms, 10)
            seen[await answered(group, methods.JOURNAL_TAIL, tail, number)] += 1
        await unharmed(group, seen)

    with_journal(work)


def samples(group: JournalGroup, first: int) -> list[tuple[Any, Any]]:
    """Return proper requests of each type."""
    step = jb.JournalStep(changes=[entry("x", invalidates=(first,)), set_key("k", "v")])
    header: dict[str, Any] = {
        "tablet_id": group.tablet,
        "client_id": b"s" * 16,
        "first_outstanding": 1,
    }
    tablet = group.tablet
    return [
        (methods.JOURNAL_STEP, jb.JournalStepRequest(changes=step.changes, sequence=1, **header)),
        (methods.JOURNAL_STEPS, jb.JournalStepsRequest(steps=[step, step], sequence=2, **header)),
        (
            methods.JOURNAL_READ,
            jb.JournalReadRequest(
                tablet_id=tablet, log=jb.ReadLog(log="log", created=first, limit=5)
            ),
        ),
        (
            methods.JOURNAL_READ,
            jb.JournalReadRequest(tablet_id=tablet, keys=jb.ListKeys(prefix="k")),
        ),
        (methods.JOURNAL_READ, jb.JournalReadRequest(tablet_id=tablet, logs=jb.ListLogs(limit=2))),
        (methods.JOURNAL_TAIL, jb.JournalTailRequest(request=7, tablet_id=tablet, log="log")),
        (methods.JOURNAL_TAIL, jb.JournalTailRequest(request=7, tablet_id=tablet, prefix="k")),
    ]


def test_mutated_requests_are_answered_or_refused():
    async def work(group):
        seen: Counter[str] = Counter()
        (first,) = await group.append("1")
        for seed, (method, good) in enumerate(samples(group, first)):
            for number, raw in enumerate(mutations(good.SerializeToString(), seed, REQUESTS)):
                try:
                    request = type(good).FromString(raw)
                except DecodeError:
                    seen["no message"] += 1
                    continue
                if number % 4:
                    request.tablet_id = group.tablet
                if method is methods.JOURNAL_TAIL:
                    request.wait_ms = min(request.wait_ms, 10)
                seen[await answered(group, method, request, number)] += 1
        await unharmed(group, seen)

    with_journal(work)
