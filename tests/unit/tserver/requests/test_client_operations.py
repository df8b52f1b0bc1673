"""Operations of clients: writes and steps are proposed alike; a broken invariant is an unknown outcome."""

import asyncio
from typing import Any

import pytest

from nyala.common.errors import OutcomeUnknown
from nyala.tserver.tablets import replicate
from nyala.wire.proto import nyala_pb2
from nyala.wire.proto.journal_pb2 import JournalStepRequest, JournalStepsRequest

KINDS: Any = (nyala_pb2.WriteHeader, JournalStepRequest, JournalStepsRequest)


class Replica:
    """A replica that notes what is proposed, and may have a broken invariant."""

    def __init__(self, bug: str = "") -> None:
        self.proposed: list[tuple[bytes, dict[str, Any]]] = []
        self._bug = bug

    async def write(self, payload: bytes, **proposal: Any) -> str:
        assert not self._bug, self._bug
        self.proposed.append((payload, proposal))
        return "outcome"


def header(kind: Any, **more: Any) -> Any:
    return kind(tablet_id="t", client_id=b"c" * 16, sequence=7, first_outstanding=5, since=3,
                propagated_time=9, **more)  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("given", "timeout_ms"), [(0, 90), (20, 18)])  # a tenth for the answer
def test_operation_is_proposed_under_its_client_and_sequence(kind, given, timeout_ms):
    replica: Any = Replica()
    found: Any = asyncio.run(replicate(replica, b"op", header(kind, timeout_ms=given), 100))
    assert found == "outcome"
    expected = {
        "client_id": b"c" * 16,
        "sequence": 7,
        "first_outstanding": 5,
        "since": 3,
        "seen": 9,
        "staged": False,
    }
    assert replica.proposed == [(b"op", expected | {"timeout_ms": timeout_ms})]


@pytest.mark.parametrize("kind", KINDS)
def test_broken_invariant_is_an_unknown_outcome(kind):
    replica: Any = Replica("it was applied twice")
    with pytest.raises(OutcomeUnknown, match="tablet t failed: it was applied twice"):
        asyncio.run(replicate(replica, b"op", header(kind), 100))
