"""`nyala up` of a cluster that exists, with another port or other options."""

from contextlib import nullcontext

import pytest
from typer.testing import CliRunner

from nyala.cli.main import app
from nyala.common.errors import Unavailable
from nyala.testing import forkserver, layout, local_cluster, warm


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """A cluster on port 9050 with an option; its servers cannot be started."""

    def start(planned, parent, on_wait):
        how = "with certificates" if planned.secure else "without"
        raise Unavailable(f"{planned.base_port} starts {how}")

    monkeypatch.setattr(local_cluster, "start", start)
    monkeypatch.setattr(forkserver, "ForkServer", nullcontext)
    monkeypatch.setattr(warm, "warm_kernels", lambda say: None)
    plan(tmp_path, secure=True).save()
    return tmp_path


def plan(folder, *, secure):
    options = {"flush_bytes": "4096"}
    return layout.plan(str(folder), 3, 3, base_port=9050, options=options, secure=secure)


def up(cluster, *words):
    return CliRunner().invoke(app, ["up", "--dir", str(cluster), *words])


@pytest.mark.parametrize(
    ("words", "difference"),
    [
        (["--base-port", "7050"], "--base-port 7050 (it has 9050)"),
        (["--set", "flush_bytes=8192"], "--set flush_bytes=8192 (it has 4096)"),
        (["--set", "read_timeout_ms=5000"], "--set read_timeout_ms=5000 (it has the default)"),
        (["--insecure"], "--insecure (it has certificates)"),
    ],
)
def test_change_of_existing_cluster_is_refused(cluster, words, difference):
    done = up(cluster, *words)
    assert done.exit_code == 2
    assert difference in done.stderr
    assert "nyala down" in done.stderr
    assert "--delete-data" in done.stderr


@pytest.mark.parametrize("words", [[], ["--base-port", "9050", "--set", "flush_bytes=4096"]])
def test_existing_cluster_starts_with_its_port(cluster, words):
    done = up(cluster, *words)
    assert (done.exit_code, done.stderr) == (
        3,
        "nyala: 9050 starts with certificates [UNAVAILABLE]\n",
    )


def test_new_cluster_has_certificates_unless_it_is_to_be_insecure(cluster, tmp_path):
    assert "starts with certificates" in up(tmp_path / "new", "--base-port", "9050").stderr
    assert "starts without" in up(tmp_path / "new", "--base-port", "9050", "--insecure").stderr


def test_cluster_of_an_earlier_version_gets_certificates_once_none_of_it_runs(cluster, monkeypatch):
    plan(cluster, secure=False).save()
    done = up(cluster)
    assert "holds a cluster without certificates, which gets them now" in done.stderr
    assert "starts with certificates" in done.stderr
    assert "starts without" in up(cluster, "--insecure").stderr
    monkeypatch.setattr("nyala.testing.processes.running_pid", lambda server: 1)
    assert "starts without" in up(cluster).stderr
