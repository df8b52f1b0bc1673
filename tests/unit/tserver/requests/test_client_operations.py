"""Operations of clients: writes and steps are proposed alike; a broken invariant is an unknown outcome."""

import asyncio
from typing import Any

import pytest

from nyala.common.errors import OutcomeUnknown
from nyala.replica.member.session_header import NO_OWNER, SERVERS, owner_of
from nyala.security.identity import CALLER, PeerIdentity
from nyala.security.principal import AccessRole, Principal
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
        "owner": NO_OWNER,
    }
    assert replica.proposed == [(b"op", expected | {"timeout_ms": timeout_ms})]


@pytest.mark.parametrize(
    ("role", "owner"), [(AccessRole.WRITER, owner_of("ann")), (AccessRole.SERVER, SERVERS)]
)
def test_operation_has_the_caller_as_its_owner(role, owner):
    replica: Any = Replica()
    token = CALLER.set(PeerIdentity(Principal("c" * 32, role, "ann"), 1, 0, 1 << 40))
    try:
        asyncio.run(replicate(replica, b"op", header(KINDS[0]), 100))
    finally:
        CALLER.reset(token)
    assert replica.proposed[0][1]["owner"] == owner


@pytest.mark.parametrize("kind", KINDS)
def test_broken_invariant_is_an_unknown_outcome(kind):
    replica: Any = Replica("it was applied twice")
    with pytest.raises(OutcomeUnknown, match="tablet t failed: it was applied twice"):
        asyncio.run(replicate(replica, b"op", header(kind), 100))
