"""A removed master with its certificate sends Raft messages to the peer ports of the others: none counts."""

import ssl
import urllib.request
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from nyala.common.hybrid_time import from_micros
from nyala.common.ids import SYS_CATALOG, OpId, ServerUuid
from nyala.env.env import system_env
from nyala.raft.messages import AppendEntries, PeerBatch, RequestVote, TimeoutNow
from nyala.security.credentials import Credentials
from nyala.security.files import joined_files
from nyala.testing import MiniCluster
from nyala.wire import methods
from nyala.wire.channels import GrpcRpc
from nyala.wire.peers import PeerTransport
from nyala.wire.proto import nyala_pb2 as pb
from tests.cluster.support.direct import Direct
from tests.unit.cli.support.verbs import nyala
from tests.waiting import wait_until

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]

TERM = 1 << 40
SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False)])


def refused(cluster, name):
    """Return how many messages a server has dropped for their sender."""
    context = ssl.create_default_context(cafile=f"{cluster.dir}/certs/ca.crt")
    context.load_cert_chain(f"{cluster.dir}/certs/admin.crt", f"{cluster.dir}/certs/admin.key")
    page = f"https://{cluster.web_address(name)}/metrics"
    with urllib.request.urlopen(page, context=context) as answer:
        lines = answer.read().decode().splitlines()
    found = [line for line in lines if "refused" in line and 'why="sender"' in line]
    return sum(float(line.rpartition(" ")[2]) for line in found)


def statuses(cluster, names):
    """Return the state of each master, as it sees it."""
    with Direct(cluster.masters) as direct:
        return {
            n: direct.ask(cluster.address(n), methods.MASTER_STATUS, pb.MasterStatusRequest())
            for n in names
        }


class Attack:
    """Sends messages as a server with its certificate.

    Args:
        cluster: the cluster.
        name: the server, which does not run any more.
        status: of a master.
    """

    def __init__(self, cluster, name, status):
        files = joined_files(cluster.data_dir(name))
        assert files is not None
        self._credentials = Credentials(files)
        uuid = self._credentials.principal.server_uuid
        assert uuid is not None
        self._sender = ServerUuid(uuid)
        self._cluster_id = status.cluster_id
        self._direct = Direct(cluster.masters)

    def __enter__(self):
        self._transport = self._direct.run(self._open())
        return self

    def __exit__(self, *_):
        self._direct.run(self._transport.close())
        self._direct.__exit__()

    async def _open(self):
        env = system_env(GrpcRpc(credentials=self._credentials))
        self._clock = env.clock
        return PeerTransport(env, lambda: self._cluster_id, credentials=self._credentials)

    def send(self, to, address):
        """Send each kind of message that raises a term, or deposes a leader."""
        common: dict[str, Any] = {"sender": self._sender, "to": ServerUuid(to), "term": TERM}
        last = OpId(TERM - 1, TERM - 1)
        messages = (
            RequestVote(last=last, override=True, **common),
            RequestVote(last=last, pre=True, **common),
            AppendEntries(round=1, **common),
            TimeoutNow(**common),
        )

        async def work():
            for message in messages:
                hlc = from_micros(self._clock.wall_us())
                batch = PeerBatch(self._sender, ServerUuid(to), hlc, ((SYS_CATALOG, message),))
                self._transport.send(address, batch)

        self._direct.run(work())


def test_removed_master_raises_no_term_and_deposes_no_leader():
    with MiniCluster(3, 1, secure=True) as cluster:
        leader = cluster.leader_master()
        masters = [n for n in cluster.names if n.startswith("master")]
        gone = next(n for n in masters if n != leader)
        stay = [n for n in masters if n != gone]
        words = ("--masters", cluster.masters, "--timeout", "120")
        status, _, err = nyala("master", "remove", cluster.address(gone), *words)
        assert status == 0, err
        cluster.kill(gone)
        assert (Path(cluster.data_dir(gone)) / "certs").exists(), "it is not revoked"

        def settled():
            found = statuses(cluster, stay)
            agreed = len({s.leader_uuid for s in found.values()}) == 1
            return found if agreed and any(s.ready for s in found.values()) else None

        before = wait_until(settled, "a master leads")
        members = {m.uuid: m for m in before[stay[0]].consensus.members}
        assert len(members) == 2
        counted = {n: refused(cluster, n) for n in stay}
        with Attack(cluster, gone, before[leader]) as attack:

            def sent(name):
                uuid = before[name].uuid
                attack.send(uuid, members[uuid].peer_address)
                return refused(cluster, name) >= counted[name] + 4

            for name in stay:
                wait_until(partial(sent, name), f"{name} has dropped the messages", poll_s=0.3)
        after = statuses(cluster, stay)
        for name in stay:
            assert after[name].term < before[name].term + 100, "an election by itself may be"
            assert len(after[name].consensus.members) == 2
        with cluster.connect() as client:
            client.create_table("t", SCHEMA, primary_key=["k"], replicas=1)
            assert client.tables() == ["t"]
