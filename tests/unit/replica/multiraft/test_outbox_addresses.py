"""Addresses of the outbox: a bounded number of servers, each learned again from the next message."""

from types import SimpleNamespace
from typing import Any

import pytest

from nyala.common.ids import ServerUuid
from nyala.replica.multiraft import outbox
from nyala.replica.multiraft.outbox import Outbox

SERVERS = [ServerUuid(f"{n:032x}") for n in range(4)]
OWN = ServerUuid("f" * 32)


@pytest.fixture
def sent() -> list[str]:
    """Return the addresses to which batches were sent."""
    return []


@pytest.fixture
def made(sent: list[str], monkeypatch: pytest.MonkeyPatch) -> Outbox:
    """Return an outbox that knows two addresses."""
    monkeypatch.setattr(outbox, "ADDRESSES", 2)
    transport: Any = SimpleNamespace(send=lambda address, batch: sent.append(address))
    clock: Any = SimpleNamespace(peek=lambda: 1)
    detector: Any = SimpleNamespace(incarnation=1, stopped_count=0, stopped_groups=())
    return Outbox(OWN, transport, clock, detector, lambda: 0)


def known(made: Outbox) -> list[str]:
    return [made.address(server) for server in SERVERS]


def test_longest_known_server_address_is_evicted_and_learned_again(made: Outbox):
    for number, server in enumerate(SERVERS):
        made.learn(server, f"host:{number}")
    assert known(made) == ["", "", "host:2", "host:3"]
    made.learn(SERVERS[0], "host:0")
    assert known(made) == ["host:0", "", "", "host:3"]


def test_address_of_server_with_queued_messages_is_not_evicted(made: Outbox, sent: list[str]):
    config: Any = {s: SimpleNamespace(peer_address=f"host:{n}") for n, s in enumerate(SERVERS)}
    for server in SERVERS:
        message: Any = SimpleNamespace(to=server)
        made.add(config, "a" * 32, message)  # type: ignore[arg-type]
    made.flush()
    assert sent == ["host:0", "host:1", "host:2", "host:3"]
    made.learn(ServerUuid("e" * 32), "host:9")
    assert known(made).count("") >= 1
