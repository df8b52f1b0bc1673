"""Certificates of servers that end while they run, and addresses of other ports: findings and remedies."""

import json
import time
from datetime import timedelta
from pathlib import Path

import pytest

import nyala
from nyala.common.errors import InvalidArgument
from nyala.security import issue
from nyala.security.authority import load, write_private
from nyala.security.describe import describe
from nyala.security.principal import AccessRole
from nyala.security.signing_request import new_request, public_key_of
from nyala.testing import MiniCluster
from tests.cluster.support.commands import run
from tests.waiting import wait_until

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]

LEFT_S = 20
"""Seconds for which the certificate of the server is valid."""


@pytest.fixture(scope="module")
def secured():
    with MiniCluster(1, 2, secure=True) as made:
        yield made


def ending(cluster):
    """Return a certificate with its key that ends soon, after an hour; no master issued it."""
    key, request = new_request()
    valid, issued_us = timedelta(hours=1, seconds=LEFT_S), int((time.time() - 3_600) * 1e6)
    signed = load(f"{cluster.dir}/certs").sign(
        public_key_of(request), AccessRole.SERVER, "db1", ["127.0.0.1"], valid, issued_us
    )
    return signed + key


def test_certificate_that_ends_is_reported_before_and_after_and_the_remedy_is_one(
    secured, tmp_path
):
    pem = Path(secured.data_dir("tserver-1"), "certs", "server.pem")
    name, address = describe(str(pem))["holder"], secured.address("tserver-1")
    write_private(pem, ending(secured))

    def ksck(wanted):
        done = run(secured, "cluster", "ksck")
        return wanted in " ".join((done.stdout + done.stderr).split())

    wait_until(lambda: ksck("was not renewed (no master issued it)"), "ksck warns of the end")
    wait_until(lambda: ksck("runs, and its certificate has expired"), "ksck names the reason")
    plan = run(secured, "doctor", "--format", "json")
    (step,) = [s for s in json.loads(plan.stdout)["steps"] if s["name"].startswith("certify-")]
    assert step["performed_by"] == "operator"
    assert f"--name {name} --host 127.0.0.1" in step["command"]
    assert "--lost" not in plan.stdout
    made = issue.server(f"{secured.dir}/certs", str(tmp_path / "new"), ["127.0.0.1"], name=name)
    write_private(pem, Path(made.cert).read_bytes() + Path(made.key).read_bytes())
    wait_until(lambda: run(secured, "cluster", "ksck").returncode == 0, "the cluster is healthy")
    assert address in run(secured, "tserver", "list").stdout


@pytest.mark.parametrize("server", ["master-0", "tserver-0"])
def test_web_port_is_named_as_one(secured, server):
    address = secured.web_address(server)
    with pytest.raises(InvalidArgument, match=f"{address} is the web port of a server"):
        nyala.connect(address, **files(secured))


def test_tablet_server_is_named_as_one_with_its_masters(secured):
    address = secured.address("tserver-0")
    with pytest.raises(
        InvalidArgument, match=f"{address} is the address of a tablet server"
    ) as told:
        nyala.connect(address, **files(secured))
    assert secured.masters in told.value.message


def files(cluster):
    certs = f"{cluster.dir}/certs"
    return {"ca": f"{certs}/ca.crt", "cert": f"{certs}/admin.crt", "key": f"{certs}/admin.key"}
