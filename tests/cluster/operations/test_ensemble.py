"""An ensemble of real processes: kills and pauses of coordinators, servers and journal servers."""

import json
import signal
from collections.abc import Iterator

import pytest

from nyala.testing import MiniCluster, processes
from tests.cluster import ensemble_kills
from tests.cluster.support.ensemble import RealEnsemble, real_ensemble
from tests.unit.cli.support.verbs import nyala

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def ensemble(cluster: MiniCluster) -> Iterator[RealEnsemble]:
    """Two coordinators and three servers beside the shared cluster."""
    with real_ensemble(cluster, 2, 3) as found:
        yield found


@pytest.mark.row("S3.13")
def test_tablets_of_a_killed_server_are_recovered(ensemble):
    ensemble.create("killed", 6)
    processes.end(ensemble.server("server-1"), signal.SIGKILL)
    try:
        ensemble.wait_settled()
    finally:
        ensemble.start("server-1")
    ensemble.wait_settled()


@pytest.mark.row("S3.17", "S3.59")
def test_killed_coordinator_is_replaced_by_one_with_its_state(ensemble):
    ensemble.create("kept", 4)
    ensemble.wait_settled()
    epoch, before = ensemble.dump()
    leader = ensemble.leader()
    processes.end(leader, signal.SIGKILL)
    try:
        ensemble.wait_settled()
        later, after = ensemble.dump()
        assert later > epoch
        assert after["records"] == before["records"]
    finally:
        ensemble.start(leader.name)


@pytest.mark.row("S3.64")
def test_paused_coordinator_is_replaced_and_does_nothing_when_it_resumes(ensemble):
    leader = ensemble.leader()
    processes.send(leader, signal.SIGSTOP)
    try:
        ensemble.create("meanwhile", 2)
        epoch, _ = ensemble.dump()
    finally:
        processes.send(leader, signal.SIGCONT)
    ensemble.wait_settled()
    assert ensemble.dump()[0] >= epoch
    names = [t.name for t in ensemble.tables()]
    assert names.count("meanwhile") == 1


@pytest.mark.row("S3.59", "S3.65")
def test_commands_tell_who_leads_and_that_none_does(ensemble, cluster):
    ensemble.wait_settled()
    status, out, err = nyala("ram", "status", "--dir", cluster.dir, "--format", "json")
    assert (status, err) == (0, "")
    shown = {p["process"]: p for p in json.loads(out)}
    leader, epoch = ensemble.leader(), ensemble.dump()[0]
    coordinators = [s for s in ensemble.layout.servers if s.role == "coordinator"]
    states = {s.name: "leads" if s == leader else "follows" for s in coordinators}
    assert {s.name: shown[s.name]["state"] for s in coordinators} == states
    assert {s.name: shown[s.name]["behind"] for s in coordinators} == dict.fromkeys(states, 0)
    assert shown[leader.name]["epoch"] == epoch
    assert all(shown[s.name]["state"] == "UP" for s in ensemble.servers())
    masters = ("--masters", cluster.masters)
    for s in coordinators:
        processes.end(s, signal.SIGKILL)
    try:
        status, out, err = nyala("ram", "status", "--dir", cluster.dir, "--format", "json")
        assert [p["state"] for p in json.loads(out)] == ["stopped"] * 2 + ["unknown"] * 3
        assert status == 1
        assert "no coordinator leads" in err
        assert all(f"{s.address} stopped" in err for s in coordinators)
        assert f"nyala ram up --dir {cluster.dir}" in err
        status, _, err = nyala("ram", "servers", *masters, "--timeout", "1")
        assert (status, f"{leader.address} cannot be reached" in err) == (3, True)
        assert "no coordinator leads: within 1 s" in err
        assert "nyala ram up" in err
    finally:
        for s in coordinators:
            ensemble.start(s.name)
    ensemble.wait_settled()


def test_table_that_does_not_exist_is_not_asked_about(ensemble, cluster):
    ensemble.create("Events", 2)
    masters = ("--masters", cluster.masters, "--timeout", "60")
    status, out, err = nyala("ram", "drop", "event", *masters, answer="y\n")
    assert (status, out) == (5, "")
    assert "did you mean 'Events'?" in err
    assert "[y/N]" not in err
    status, _, err = nyala("ram", "drop", "Events", *masters, answer="n\n")
    assert (status, "Events of the ensemble, with 2 tablets? [y/N]" in err) == (1, True)
    assert "Events" in [t.name for t in ensemble.tables()]
    assert nyala("ram", "drop", "Events", *masters, answer="y\n")[0] == 0
    assert "Events" not in [t.name for t in ensemble.tables()]
    status, out, err = nyala("ram", "log", *masters, "--ensemble", "nope")
    assert (status, out, "has no log 'nope'" in err) == (5, "", True)


def test_leader_of_the_journal_is_killed_under_operations(ensemble, cluster):
    address = ensemble.journal_leader()
    name = next(n for n in cluster.names if cluster.address(n) == address)
    cluster.kill(name)
    try:
        for number in range(5):
            ensemble.create(f"under{number}", 2)
    finally:
        cluster.start(name)
    ensemble.wait_settled()
    names = {t.name for t in ensemble.tables()}
    assert {f"under{n}" for n in range(5)} <= names


@pytest.mark.row("S3.15", "S3.17", "S3.59")
def test_kills_under_operations_lose_and_double_none(ensemble, cluster):
    outcome = ensemble_kills.run(cluster, ensemble, 3, seed=18, prefix="soak")
    assert sum(c.number for c in outcome.clients) > 0
