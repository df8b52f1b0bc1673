"""Replacement of the certificate authority of a real cluster, under load, with the leader master killed."""

import json
from pathlib import Path

import pytest

from nyala.testing import MiniCluster
from tests.cluster.support.commands import run
from tests.cluster.support.rotating import KEYS, Load, done, trusted
from tests.waiting import wait_until

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def cluster():
    with MiniCluster(3, 3, secure=True) as made:
        yield made


def test_authority_is_replaced_while_clients_write_and_read_and_the_leader_master_is_killed(
    cluster, tmp_path
):
    (old,) = trusted(cluster, "master-0")
    load = Load(cluster)
    try:
        load.progress()
        refused = run(cluster, "ca", "retire")
        assert "no authority to retire" in refused.stderr
        certs = Path(cluster.data_dir("master-0")).parent / "certs"
        made = run(
            cluster, "cert", "user", "ann", "--dir", str(certs), "--out", str(tmp_path / "ann")
        )
        assert made.returncode == 0, made.stderr
        done(cluster, "ca", "rotate", before="being replaced already")
        killed = cluster.leader_master()
        cluster.kill(killed)
        left = [n for n in cluster.names if n != killed]
        wait_until(
            lambda: (
                all(trusted(cluster, n)[-1] == old for n in left if len(trusted(cluster, n)) == 2)
                and all(len(trusted(cluster, n)) == 2 for n in left)
            ),
            "all servers trust both authorities, and the new one issues",
        )
        load.progress()
        cluster.start(killed)
        wait_until(
            lambda: "no server is behind; next:" in run(cluster, "ca", "show").stderr,
            "every server has a certificate of the new authority",
        )
        new = trusted(cluster, "master-0")[0]
        assert new != old
        shown = json.loads(run(cluster, "ca", "show", "--format", "json").stdout)
        assert [a["state"] for a in shown["authorities"]] == ["issues", "trusted, old"]
        assert (shown["behind"], shown["logins"]) == ([], [])
        assert all(trusted(cluster, n) == [new, old] for n in cluster.names)
        again = cluster.leader_master()
        cluster.kill(again)
        cluster.start(again)
        load.progress()
        refused = run(cluster, "ca", "retire")
        assert "certificates of users that were not renewed: ann (serial number" in refused.stderr
        files = {"NYALA_CA": "ca.crt", "NYALA_CERT": "ann.crt", "NYALA_KEY": "ann.key"}
        ann = {name: str(tmp_path / "ann" / file) for name, file in files.items()}
        done(cluster, "cert", "renew", env=ann)
        again = "no replacement is under way"
        retired = done(cluster, "ca", "retire", before=again)
        assert "is retired" in retired or again in retired
        wait_until(
            lambda: all(trusted(cluster, n) == [new] for n in cluster.names),
            "no server trusts the old one",
        )
        load.progress()
    finally:
        load.stop()
    keys = [Path(cluster.data_dir(f"master-{n}"), "certs") for n in range(3)]
    wait_until(
        lambda: all(sorted(p.name for p in k.glob("*.key")) == ["ca.key"] for k in keys),
        "the key of the old authority is removed",
    )
    for name in cluster.names:  # they start with what they have now
        cluster.stop(name)
    for name in cluster.names:
        cluster.start(name, wait=False)
    cluster.wait_healthy()
    with cluster.connect() as client:
        assert client.table("t").count() == KEYS
    assert run(cluster, "cluster", "ksck").returncode == 0
    for words in (("token", "create"), ("ca", "rotate")):
        assert run(cluster, *words).returncode == 0
