"""Hostile requests to every unary method of masters, by an administrator: answers or clean refusals only."""

import logging
import random
from collections import Counter
from typing import Any

import pytest
from google.protobuf.message import Message

from nyala.env.rpc import Shape
from nyala.security.authorities.keyring import Keyring
from nyala.security.identity import CALLER, PeerIdentity
from nyala.security.principal import AccessRole, Principal
from nyala.security.signing_request import new_request
from nyala.wire import methods
from nyala.wire.proto import access_pb2 as pb
from nyala.wire.proto import nyala_pb2
from nyala.wire.proto import transactions_pb2 as txn
from tests.properties.hostile.requests import SEED, kind_of, outcome, requests_of, unclean
from tests.unit.master.support.master_cluster import Masters, with_masters
from tests.unit.master.support.master_helpers import create_request, report, server_info
from tests.unit.security.certificates import authority

SLOW = (methods.LOGIN, methods.ADD_USER, methods.SET_USER)
"""Methods that hash a password, which takes 0.1 s."""
CALLERS = (AccessRole.USER, AccessRole.ADMIN, AccessRole.SERVER)


def be(number: int) -> None:
    role = CALLERS[number % len(CALLERS)]
    CALLER.set(PeerIdentity(Principal("a" * 32, role, f"name{number % 2}"), 1, 0, 1 << 40))


class Prepared:
    """Masters with a table, a token and a grant.

    Attributes:
        leader: name of the leader master.
        texts: names and ids of what exists.
        samples: proper requests.
    """

    async def start(self, masters: Masters) -> None:
        """Start the masters, and make what requests may name."""
        masters.start()
        self.leader = await masters.leader()
        await masters.heartbeat("ts-a", "ts-b", "ts-c", "ts-d")
        table = await masters.create(self.leader, "staff")
        be(1)
        call: dict[Any, Any] = dict(masters.master(self.leader).handlers())
        wanted = pb.CreateTokenRequest(role="tserver", ttl_s=60, uses=1)
        token = str((await call[methods.CREATE_TOKEN](wanted)).token).split(".")
        grant = pb.GrantRequest(user="ann", role="reader", table="staff")
        await call[methods.GRANT](grant)
        self.texts = ["staff", table, "ann", "reader", "tserver", "ts-a", *token[2:], "v", "other"]
        participant = txn.TxnParticipant(tablet_id=table, table_id=table)
        self.samples: list[Message] = [
            wanted, grant, create_request("other"), pb.RevokeRequest(name="ann"),
            nyala_pb2.DescribeTableRequest(name="staff"), nyala_pb2.TabletLocationsRequest(table_id=table),
            pb.JoinRequest(
                token_id=token[2], secret=token[3], csr=new_request()[1], uuid="5" * 32, role="tserver",
                hosts=["127.0.0.1"],
            ),
            pb.SetUserRequest(name="ann", role="reader"), pb.RevokeGrantRequest(user="ann", table="staff"),
            txn.TxnCommitRequest(transaction=b"t" * 16, participants=[participant]),
            nyala_pb2.HeartbeatRequest(
                server=server_info("ts-a"), full=True, report_sequence=9, tablets=[report(table)]
            ),
        ]  # fmt: skip


@pytest.mark.parametrize("seed", range(2))
def test_masters_answer_or_refuse_every_request(seed, caplog):
    asked: Counter[tuple[str, str]] = Counter()

    async def work(masters: Masters) -> None:
        rng, made = random.Random(SEED + seed), Prepared()
        await made.start(masters)
        handlers: dict[Any, Any] = dict(masters.master(made.leader).handlers())
        for method, handler in handlers.items():
            if method.shape is not Shape.UNARY:
                continue
            count = 2 if method in SLOW else 30
            wrong = requests_of(rng, kind_of(method), count, made.texts, (0, 1, 2), made.samples)
            for number, request in enumerate(wrong):
                be(number)
                asked[method.path, await outcome(handler, request)] += 1
        await masters.heartbeat("ts-a", "ts-b", "ts-c", "ts-d")
        await masters.create(made.leader, "after")
        assert "after" in await masters.tables(made.leader)

    with caplog.at_level(logging.ERROR):
        with_masters(work, keys=Keyring(authority()))
    assert not unclean(asked)
    assert not [r.getMessage() for r in caplog.records if r.exc_info]
    assert asked.total() > 800
    assert sum(n for (_, code), n in asked.items() if code == "OK") > 200
