"""A leader on a real cluster whose client loses requests and answers."""

import threading
from typing import Any

import pytest

import nyala
from nyala.common.errors import OutcomeUnknown, Unavailable
from nyala.recipes import Leader
from nyala.wire import methods

STEPS = (methods.JOURNAL_STEP, methods.JOURNAL_STEPS)
LOSE_REQUESTS, LOSE_ANSWER, NOTHING_IS_LOST = range(3)


@pytest.mark.full
@pytest.mark.row("S3.60")
def test_appends_that_are_acknowledged_are_there_though_requests_and_answers_are_lost(cluster):
    with cluster.connect() as client:
        _append_with_losses(client.create_journal("lost_answers"))
        client.drop_journal("lost_answers")


def _append_with_losses(journal: nyala.Journal) -> None:
    rpc: Any = journal.connection.core.env.rpc
    real, mode = rpc.call, [NOTHING_IS_LOST]

    async def call(address: str, method: Any, request: Any, **named: Any) -> Any:
        if method in STEPS and mode[0] != NOTHING_IS_LOST:
            if mode[0] == LOSE_ANSWER:
                mode[0] = LOSE_REQUESTS
                await real(address, method, request, **named)
            raise Unavailable("connection lost")
        return await real(address, method, request, **named)

    rpc.call = call
    acknowledged: dict[int, bytes] = {}
    with Leader(journal, "service", holder="one", timeout_ms=3_000) as leader:
        for number in range(3):
            leader.wait()
            mode[0] = LOSE_REQUESTS
            timers = [
                threading.Timer(1.05, mode.__setitem__, (0, LOSE_ANSWER)),
                threading.Timer(2.0, mode.__setitem__, (0, NOTHING_IS_LOST)),
            ]
            for timer in timers:
                timer.start()
            data = b"%d" % number
            try:
                acknowledged[leader.append(data)] = data
            except OutcomeUnknown:
                continue  # the leadership is lost, and the entry is there or not
            finally:
                for timer in timers:
                    timer.join()
        found = {e.id: e.data for e in journal.log("service").read()}
    assert acknowledged.items() <= found.items()
    values = [data for data in found.values() if not data.startswith(b"leader_alive")]
    assert len(values) == len(set(values)), "none twice"
