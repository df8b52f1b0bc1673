"""Certificates of the members of an ensemble of real processes: renewal, revocation, replaced authority."""

import socket
import ssl
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from nyala.common.errors import NyalaError
from nyala.security import authority, issue
from nyala.security.authorities import bundle
from nyala.security.identity import PeerIdentity, identity_of_pem
from nyala.security.principal import AccessRole, server_name
from nyala.testing import MiniCluster
from nyala.wire import methods
from nyala.wire.proto import ram_pb2 as pb
from tests.cluster.support.commands import run
from tests.cluster.support.direct import Direct
from tests.cluster.support.ensemble import real_ensemble
from tests.waiting import wait_until, within

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def cluster():
    with MiniCluster(1, 3, secure=True) as made:
        yield made


@pytest.fixture(scope="module")
def ensemble(cluster):
    """One coordinator and two servers, whose certificates have used up two thirds of their life."""

    def prepare(planned):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(authority, "BACKDATED", timedelta(days=8))
            patched.setattr(issue, "CA_DAYS", 3)
            for number, server in enumerate(planned.servers):
                name = server_name("member", f"{number + 1:032x}")
                issue.local_server(
                    f"{cluster.dir}/certs", f"{server.dir}/certs", name, ["127.0.0.1"], signs=False
                )

    with real_ensemble(cluster, 1, 2, prepare) as found:
        yield found


def own(server) -> PeerIdentity:
    """Return the certificate in the folder of a process."""
    return identity_of_pem(Path(server.dir, "certs", "server.pem").read_bytes())


def shown(cluster, server) -> int:
    """Return the serial number of the certificate with which a process serves now."""
    context = ssl.create_default_context(cafile=f"{cluster.dir}/certs/ca.crt")
    context.load_cert_chain(f"{cluster.dir}/certs/admin.crt", f"{cluster.dir}/certs/admin.key")
    host, port = server.address.split(":")
    with (
        socket.create_connection((host, int(port)), timeout=within(10)) as plain,
        context.wrap_socket(plain, server_hostname=host) as wrapped,
    ):
        found: Any = wrapped.getpeercert()
    return int(found["serialNumber"], 16)


def test_members_renew_their_certificates_while_they_serve(cluster, ensemble):
    ensemble.create("before", 4)
    members = ensemble.layout.servers

    def renewed(server):
        return own(server).ends_s - own(server).issued_s == 30 * 86_400

    def in_use(server):
        return shown(cluster, server) == own(server).serial

    for server in members:
        wait_until(partial(renewed, server), f"{server.name} renewed its certificate")
        wait_until(partial(in_use, server), f"{server.name} serves with the new certificate")
    names = {own(s).principal.name for s in members}
    assert names == {f"member-{n + 1:032x}" for n in range(3)}
    ensemble.create("after", 4)
    ensemble.wait_settled()


def test_members_refuse_a_certificate_that_is_revoked_while_its_connection_is_open(
    cluster, ensemble, monkeypatch
):
    ann = issue.user(f"{cluster.dir}/certs", f"{cluster.dir}/ann", "ann", AccessRole.READER)
    asked = {"server": (methods.RAM_SERVER_STATUS, pb.ServerStatusRequest()),
             "coordinator": (methods.RAM_COORDINATOR_STATUS, pb.CoordinatorStatusRequest())}  # fmt: skip

    def refused(server):
        try:
            direct.ask(server.address, *asked[server.role])
        except NyalaError as err:
            return "was revoked" in err.message
        return False

    with Direct(files=ann) as direct:
        assert not any(refused(s) for s in ensemble.layout.servers)
        done = run(cluster, "cert", "revoke", "ann")
        assert done.returncode == 0, done.stderr
        for server in ensemble.layout.servers:
            wait_until(partial(refused, server), f"{server.name} refuses ann")
            kept = Path(server.dir, "revoked")  # is written once it is in force
            wait_until(kept.exists, "a member that starts without masters refuses it too")
            assert "name-ann" in kept.read_text()


def test_members_take_over_the_authority_that_replaces_the_old_one(cluster, ensemble):
    before = own(ensemble.layout.servers[0]).authority
    done = run(cluster, "ca", "rotate")
    assert done.returncode == 0, done.stderr

    def renewed(server):
        return own(server).authority not in ("", before)

    def retired(server):
        return len(bundle.parse(Path(server.dir, "certs", "ca.crt").read_bytes())) == 1

    for server in ensemble.layout.servers:
        wait_until(partial(renewed, server), f"{server.name} is certified by the new authority")
    wait_until(
        lambda: "no server is behind" in run(cluster, "ca", "show").stderr, "nobody is behind"
    )
    done = run(cluster, "ca", "retire", "--dir", f"{cluster.dir}/certs")
    assert done.returncode == 0, done.stderr
    for server in ensemble.layout.servers:
        wait_until(partial(retired, server), f"{server.name} trusts the new authority only")
    ensemble.create("retired", 4)
    ensemble.wait_settled()
