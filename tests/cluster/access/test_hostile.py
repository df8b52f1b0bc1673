"""Hostile bytes to every method of real servers with certificates: they run on, bounded, and stay equal."""

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import grpc
import pyarrow as pa
import pytest

import nyala
from nyala.security import issue, policy
from nyala.security.files import CredentialFiles
from nyala.security.principal import AccessRole
from nyala.testing import MiniCluster
from nyala.wire import methods
from nyala.wire.proto import nyala_pb2 as pb
from tests.cluster.support.direct import mutations
from tests.cluster.support.ksck import wait_equal
from tests.properties.hostile.requests import SEED, kind_of, requests_of
from tests.waiting import later

pytestmark = pytest.mark.full

ROWS = [{"k": k, "v": f"row {k}"} for k in range(200)]
METHODS = {m.path: m for m in vars(methods).values() if hasattr(m, "decode_request")}
EACH = 12
"""Requests to each method of each server, by each caller."""
GROWN = 400 << 20
"""Bytes by which the memory of a server may grow."""
DESTRUCTIVE = {
    methods.UNSAFE_CHANGE_CONFIG.path, methods.SET_DECOMMISSION.path, methods.REVOKE.path,
    methods.DROP_TABLE.path, methods.REPLACE_TABLET.path,
}  # fmt: skip
"""Methods that, called by an administrator, may do what they say; users call them too."""


def resident(data_dir: str) -> int:
    """Return the resident memory of a server in bytes."""
    pid = Path(f"{data_dir}.pid").read_text().split()[0]
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmRSS"))


@pytest.fixture(scope="module")
def secured() -> Iterator[MiniCluster]:
    with MiniCluster(secure=True) as made:
        yield made


def requests_to(rng: random.Random, path: str, texts: list[str]) -> list[bytes]:
    """Return hostile messages to a method."""
    if path == methods.DO_PUT.path:
        return mutations(b"\x12\x05hello\x1a\x03abc" * 3, rng.randrange(1 << 30), EACH)
    made = requests_of(rng, kind_of(METHODS[path]), EACH, texts, (0, 1, 2))
    return [m.SerializeToString() for m in made]


def status_of(channel: grpc.Channel, path: str, raw: bytes) -> str:
    """Return the gRPC status of the answer to one message."""
    try:
        for _ in channel.stream_stream(f"/{path}")(iter([raw]), timeout=later(20)):
            pass
    except grpc.RpcError as err:
        return str(err.code().name)
    return "OK"


def test_servers_outlive_hostile_requests_of_users_readers_and_administrators(secured):
    certs = f"{secured.dir}/certs"
    admin = CredentialFiles(f"{certs}/ca.crt", f"{certs}/admin.crt", f"{certs}/admin.key")
    callers = {"admin": admin} | {
        name: issue.user(certs, f"{secured.dir}/{name}", name, role)
        for name, role in (("cara", AccessRole.USER), ("ann", AccessRole.READER))
    }
    rng, seen = random.Random(SEED), Counter[tuple[str, str]]()
    with nyala.connect(secured.masters, ca=admin.ca, cert=admin.cert, key=admin.key) as client:
        schema = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.string())])
        table = client.create_table("hostile", schema, ["k"], replicas=3)
        table.insert(ROWS).raise_for_errors()
        texts = ["hostile", table.tablets()[0].id, "ann", "k", "v"]
        before = {n: resident(secured.data_dir(n)) for n in secured.names}
        for who, files in callers.items():
            pem = [Path(p).read_bytes() for p in (files.ca, files.key, files.cert)]
            tls = grpc.ssl_channel_credentials(*pem)
            for server in ("tserver-0", secured.leader_master()):
                with grpc.secure_channel(secured.address(server), tls) as channel:
                    for path in sorted(policy.LEAST_ROLES.keys() & METHODS.keys()):
                        if who == "admin" and path in DESTRUCTIVE:
                            continue
                        for raw in requests_to(rng, path, texts):
                            seen[path, status_of(channel, path, raw)] += 1
        wrong = {"INTERNAL", "UNKNOWN", "DEADLINE_EXCEEDED", "DATA_LOSS", "CANCELLED"}
        assert not [key for key in seen if key[1] in wrong]
        assert seen.total() > 2_000
        assert all(secured.running(name) for name in secured.names)
        assert min(before.values()) > 10 << 20
        for name, used in before.items():
            assert resident(secured.data_dir(name)) < used + GROWN
        found = client.table("hostile").scan().to_arrow().sort_by("k").to_pylist()
        assert found == ROWS
        wait_equal(secured)
    for log in Path(secured.dir).rglob("*.log"):
        assert "Traceback" not in log.read_text(errors="replace"), log


def test_an_unknown_method_is_refused_as_such(secured):
    pem = [
        Path(f"{secured.dir}/certs/{n}").read_bytes() for n in ("ca.crt", "admin.key", "admin.crt")
    ]
    tls = grpc.ssl_channel_credentials(*pem)
    with grpc.secure_channel(secured.address("tserver-0"), tls) as channel:
        raw = pb.ServerInfoRequest().SerializeToString()
        assert status_of(channel, "nyala.v1.ServerService/No", raw) == "UNIMPLEMENTED"
