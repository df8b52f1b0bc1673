"""Refusals of a process before it serves, and the verbs that start, show and stop a local cluster."""

import contextlib
import functools
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from nyala.testing import layout, processes
from tests.waiting import wait_until, within

pytestmark = pytest.mark.full

BIG = 120


def cli(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "nyala.cli.main", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=within(BIG), check=False)


def server(role: str, folder: Path, masters: str, **ports: str) -> list[str]:
    """Return the command of a server on free ports, or on those given."""
    free = iter(layout.free_ports(3))
    chosen = {n: f"127.0.0.1:{next(free)}" for n in ("address", "peer_address", "web_address")}
    chosen |= ports
    words = [role, "run", "--dir", str(folder), "--master-addresses", masters]
    for name, address in chosen.items():
        words += ["--" + name.replace("_", "-"), address]
    return words


@pytest.fixture
def unused_address() -> str:
    """An address at which no master listens."""
    return f"127.0.0.1:{layout.free_ports(1)[0]}"


def test_data_directory_in_use_is_refused_and_its_process_continues(cluster):
    instance = Path(cluster.data_dir("tserver-0"), "instance")

    def registered() -> bool:
        found = instance.read_bytes()
        return b'"cluster_id":""' not in found and b'"masters":[]' not in found

    wait_until(registered, "its cluster and the list of its masters are written")
    before = instance.read_bytes()
    done = cli(*server("tserver", Path(cluster.data_dir("tserver-0")), cluster.masters))
    assert done.returncode == 4
    assert "is in use by a running process; stop that server first" in done.stderr
    assert cluster.running("tserver-0")
    assert instance.read_bytes() == before


def test_taken_port_is_named_by_every_kind_of_server(tmp_path):
    taken = {}
    with contextlib.ExitStack() as held:
        for role in ("master", "tserver"):
            for port in ("address", "peer_address", "web_address"):
                sock = held.enter_context(socket.create_server(("127.0.0.1", 0)))
                address = f"127.0.0.1:{sock.getsockname()[1]}"
                masters = address if (role, port) == ("master", "address") else ""
                masters = masters or f"127.0.0.1:{layout.free_ports(1)[0]}"
                given = {"address": masters} if role == "master" else {}
                words = server(role, tmp_path / role / port, masters, **(given | {port: address}))
                command = [sys.executable, "-m", "nyala.cli.main", *words]
                taken[role, port, address] = held.enter_context(
                    subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
                )
        for (role, port, address), process in taken.items():
            _, text = process.communicate(timeout=within(BIG))
            assert process.returncode == 2, (role, port, text)
            last = text.splitlines()[-1]
            assert last.startswith(f"nyala {role}: cannot "), text
            assert f"{address}: Address already in use; stop the process" in last, text
            assert "grpc" not in text.lower(), text
            assert "Traceback" not in text, text


def test_directory_of_another_or_unknown_role_is_refused(tmp_path, unused_address):
    words = server("tserver", tmp_path / "data", unused_address)
    process = subprocess.Popen(
        [sys.executable, "-m", "nyala.cli.main", *words], stderr=subprocess.PIPE, text=True
    )
    try:
        wait_until((tmp_path / "data" / "instance").exists, "a formatted directory", BIG)
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=within(BIG))
    done = cli(*server("master", tmp_path / "data", ""))
    assert done.returncode == 2
    assert "belongs to a tserver" in done.stderr
    assert "give it a directory of its own" in done.stderr
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    done = cli(*server("tserver", tmp_path / "mine", unused_address))
    assert done.returncode == 2
    assert "is not empty (it holds thesis.txt)" in done.stderr
    assert os.listdir(tmp_path / "mine") in (["thesis.txt"], ["lock", "thesis.txt"])


def test_tablet_server_of_another_cluster_is_refused_and_exits(cluster, tmp_path):
    """A start with masters other than the saved ones is refused and changes nothing."""
    with_other = tmp_path / "other"
    try:
        made = cli("up", "--dir", str(with_other), "--masters", "1", "--tservers", "1", "--base-port",
                   str(free_base(1)), "--insecure")  # fmt: skip
        assert made.returncode == 0, made.stderr
        again = cli("up", "--dir", str(with_other))
        assert (again.returncode, "2 processes" in again.stdout) == (0, True), again.stderr
        assert "holds a cluster of 1 masters and 1 tablet servers: starting that" in again.stderr
        shown = cli("status", "--dir", str(with_other), "--format", "json")
        assert shown.returncode == 0
        assert {s["server"]: s["state"] for s in json.loads(shown.stdout)} == {
            "master-0": "leader", "tserver-0": "alive",
        }  # fmt: skip
    finally:
        stopped = cli("down", "--dir", str(with_other))
    assert (stopped.returncode, stopped.stdout[:19]) == (0, "stopped 2 processes")
    shown = cli("status", "--dir", str(with_other), "--format", "json")
    assert shown.returncode == 3
    assert [s["pid"] for s in json.loads(shown.stdout)] == ["-", "-"]
    done = cli(*server("tserver", with_other / "tserver-0", cluster.masters))
    assert done.returncode == 2
    assert "start it with the masters of its own cluster" in done.stderr
    with cluster.connect() as client:
        assert sum(s.role == "tserver" for s in client.servers()) == 3
    gone = cli("down", "--dir", str(with_other), "--delete-data")
    assert (gone.returncode, gone.stdout[:19]) == (0, "stopped 0 processes")
    assert not with_other.exists()


def free_base(servers: int) -> int:
    """Return a base port whose ports are all free."""
    first = 21050 + 350 * (os.getpid() % 8)  # concurrent searches begin elsewhere
    for base in range(first, 27000, 350):
        ports = [
            base + 100 * i + k + d for i in range(servers) for k in (0, 1) for d in (0, 1000, 2000)
        ]
        if not layout.ports_in_use([f"127.0.0.1:{p}" for p in ports]):
            return base
    raise AssertionError("no free ports")


def test_ports_in_use_are_named_before_anything_starts(tmp_path):
    base = free_base(3)
    with socket.socket() as one, socket.socket() as two:
        for sock, port in ((one, base + 1), (two, base + 2200)):
            sock.bind(("127.0.0.1", port))
            sock.listen()
        done = cli("up", "--dir", str(tmp_path / "c"), "--base-port", str(base))
    assert done.returncode == 2
    assert f"127.0.0.1:{base + 1}, 127.0.0.1:{base + 2200}" in done.stderr
    assert "choose other ports with --base-port" in done.stderr
    assert os.listdir(tmp_path / "c") == []
    assert cli("status", "--dir", str(tmp_path / "c")).returncode == 5
    assert cli("down", "--dir", str(tmp_path / "c")).returncode == 5


@pytest.mark.parametrize("which", ["address", "peer_address", "web_address"])
def test_port_in_use_ends_server_with_message(which, tmp_path, unused_address):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = cli(*server("tserver", tmp_path / "d", unused_address, **{which: address}))
    assert done.returncode != 0
    assert address.rpartition(":")[2] in done.stderr, done.stderr[-2000:]
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("which", "address"),
    [("bind", "0.0.0.0"), ("peer_address", "192.0.2.1:7051"), ("web_address", "192.0.2.1:7051")],
)
def test_only_loopback_can_be_bound(which, address, tmp_path):
    done = cli(*server("master", tmp_path / "d", "", **{which: address}))
    assert done.returncode == 4
    assert f"refusing to bind {address}" in done.stderr
    assert "without certificates" in done.stderr
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize(
    ("which", "address"), [("address", "0.0.0.0:0"), ("peer_address", "[::]:0")]
)
def test_every_interface_is_no_address_of_a_server(which, address, tmp_path):
    done = cli(*server("master", tmp_path / "d", "", **{which: address}))
    assert done.returncode == 2
    assert f"{address} is every interface, which others cannot connect to" in done.stderr
    assert not (tmp_path / "d").exists()


def test_optimised_python_is_refused(tmp_path, unused_address):
    words = server("tserver", tmp_path / "d", unused_address)
    command = [sys.executable, "-O", "-m", "nyala.cli.main", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=within(BIG), check=False)
    assert done.returncode == 2
    assert "does not run with python -O" in done.stderr


def test_servers_of_a_mini_cluster_end_with_a_killed_process(tmp_path):
    script = (
        "from nyala.testing import MiniCluster\n"
        f"cluster = MiniCluster(masters=1, tservers=1, dir={str(tmp_path / 'data')!r})\n"
        "print('healthy', flush=True)\n"
        "input()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as owner:
        assert owner.stdout is not None
        try:
            assert owner.stdout.readline() == b"healthy\n"
            plan = layout.load(str(tmp_path / "data"))
            assert plan is not None
            running = [processes.running_pid(s) for s in plan.servers]
            assert None not in running
        finally:
            owner.kill()
    for server_spec in plan.servers:
        ended = functools.partial(lambda s: processes.running_pid(s) is None, server_spec)
        wait_until(ended, f"the end of {server_spec.name}", BIG)
