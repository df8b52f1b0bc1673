"""Attacks on real servers by holders of a reader's, a tablet server's and a foreign certificate."""

from pathlib import Path

import grpc
import pyarrow as pa
import pytest

from nyala.common.errors import Forbidden, InvalidArgument
from nyala.security import issue, policy
from nyala.security.files import CredentialFiles
from nyala.security.principal import AccessRole
from nyala.testing import MiniCluster
from nyala.wire import methods
from nyala.wire.proto import nyala_pb2 as pb
from tests.cluster.support.commands import connected, files_of, run
from tests.cluster.support.direct import Direct
from tests.cluster.support.leading import leader
from tests.waiting import later

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.string())])
OF_SERVERS = sorted(
    path
    for path, role in policy.LEAST_ROLES.items()
    if role is AccessRole.SERVER and path.startswith("nyala.v1.")
)
TSERVER = "7" * 32
"""Uuid in the certificate of an attacker who took over a tablet server."""


@pytest.fixture(scope="module")
def secured():
    with MiniCluster(1, 2, secure=True) as made:
        yield made


def of_tserver(cluster):
    folder = f"{cluster.dir}/stolen"
    name = f"tserver-{TSERVER}"
    return issue.server(f"{cluster.dir}/certs", folder, ["127.0.0.1"], name=name)


def statuses(cluster, server, files, paths):
    """Return the gRPC status of the answer to an empty request, for each method."""
    with open(files.ca, "rb") as ca, open(files.key, "rb") as key, open(files.cert, "rb") as cert:
        tls = grpc.ssl_channel_credentials(ca.read(), key.read(), cert.read())
    found = {}
    with grpc.secure_channel(cluster.address(server), tls) as channel:
        for path in paths:
            try:
                channel.unary_unary(f"/{path}")(b"", timeout=later(30))
                found[path] = "OK"
            except grpc.RpcError as err:
                found[path] = err.code().name
    return found


def test_masters_answer_to_polls_of_servers_only(secured, tmp_path):
    address, request = secured.address("master-0"), pb.MasterStatusRequest()
    ca, foreign = f"{secured.dir}/certs/ca.crt", issue.initialise(str(tmp_path / "foreign"))
    with Direct(secured.masters, of_tserver(secured)) as stolen:
        known = stolen.ask(address, methods.MASTER_STATUS, request).uuid
        assert stolen.ask(address, methods.POLL_MASTER, request).uuid == known
    path = methods.POLL_MASTER.path
    for user, role in (("ann", AccessRole.READER), ("boss", AccessRole.ADMIN)):
        files = files_of(secured, user, role)
        with Direct(secured.masters, files) as other, pytest.raises(Forbidden, match="servers of"):
            other.ask(address, methods.POLL_MASTER, request)  # over the stream port
        assert statuses(secured, "master-0", files, [path]) == {path: "PERMISSION_DENIED"}
    trusting = CredentialFiles(ca, foreign.cert, foreign.key)
    assert statuses(secured, "master-0", trusting, [path]) == {path: "UNAVAILABLE"}


@pytest.mark.parametrize("server", ["master-0", "tserver-0"])
def test_readers_call_no_method_of_servers_and_servers_none_that_gives_rights(secured, server):
    reader = files_of(secured, "ann", AccessRole.READER)
    refused = statuses(secured, server, reader, OF_SERVERS)
    assert len(OF_SERVERS) > 10
    assert set(refused.values()) <= {"PERMISSION_DENIED", "UNIMPLEMENTED"}, refused
    assert "PERMISSION_DENIED" in refused.values()
    stolen = statuses(secured, server, of_tserver(secured), sorted(policy.NOT_OF_SERVERS))
    assert set(stolen.values()) <= {"PERMISSION_DENIED", "UNIMPLEMENTED"}, stolen


def test_holder_of_a_tablet_server_s_certificate_reports_for_no_other_one(secured):
    with secured.connect() as client:
        victim = next(s.uuid for s in client.servers() if s.role == "tserver")
    with Direct(secured.masters, of_tserver(secured)) as stolen:
        info = pb.ServerInfoResponse(
            uuid=victim, role="tserver", address="127.0.0.1:1", peer_address="127.0.0.1:2"
        )
        with pytest.raises(Forbidden, match="reports for itself only"):
            stolen.ask(
                secured.address("master-0"), methods.HEARTBEAT, pb.HeartbeatRequest(server=info)
            )


@pytest.mark.parametrize("server", ["master-0", "tserver-0"])
def test_server_with_keys_in_its_memory_writes_no_core_file(secured, server):
    """Abuse case 23."""
    pid = Path(f"{secured.data_dir(server)}.pid").read_text().split()[0]
    lines = Path(f"/proc/{pid}/limits").read_text().splitlines()
    (core,) = [line.split() for line in lines if line.startswith("Max core file size")]
    assert core[4] == "0"


@pytest.mark.row("A23")
def test_sessions_of_owners_go_with_the_copy_of_a_tablet(secured):
    """A forged client id after its tablet was copied to another server, in each direction."""

    def write(user, row):
        with connected(secured, user, client_id=b"a" * 16) as client:
            return client.table("own").insert([row])

    with connected(secured, "root", AccessRole.ADMIN) as root:
        table = root.create_table("own", SCHEMA, primary_key=["k"], replicas=1)
        write("bob", {"k": 2, "v": "bob"}).raise_for_errors()  # before ann, under her id
        write("ann", {"k": 1, "v": "ann"}).raise_for_errors()
        (tablet,) = table.tablets()
        for _ in range(2):
            here = leader(secured, "own")
            (there,) = {"tserver-0", "tserver-1"} - {here}
            words = ("tablet", "change_config", "move_replica", tablet.id)
            moved = run(secured, *words, secured.address(here), secured.address(there))
            assert moved.returncode == 0, moved.stderr
            assert leader(secured, "own") == there
            assert not write("ann", {"k": 1, "v": "ann"}).errors, "the same write, sent again"
            assert not write("bob", {"k": 2, "v": "bob"}).errors, "the same write, sent again"
            with pytest.raises(InvalidArgument, match="other bytes"):
                write("bob", {"k": 1, "v": "ann"})  # hers, of which he learns nothing
        rows = table.scan(order=True).to_arrow().to_pylist()
        assert rows == [{"k": 1, "v": "ann"}, {"k": 2, "v": "bob"}]
