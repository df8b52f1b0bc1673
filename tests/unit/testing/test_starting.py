"""Start of server processes: each gets a name, a log and a pid file, or an error with the reason."""

import functools
import subprocess
import sys
from pathlib import Path

import pytest

from nyala.common.errors import Unavailable
from nyala.testing import processes
from nyala.testing.forkserver import ForkServer
from nyala.testing.layout import Layout, ServerSpec
from tests.waiting import wait_until, within


def spec(folder: Path, name: str) -> ServerSpec:
    """Return a server whose command line is refused before it opens files."""
    return ServerSpec(name, "tserver", str(folder / name), "nowhere", "nowhere", "nowhere")


def ended(server: ServerSpec) -> bool:
    return processes.running_pid(server) is None


def test_each_server_has_a_log_and_its_last_message_is_found(tmp_path):
    servers = (spec(tmp_path, "tserver-0"), spec(tmp_path, "tserver-1"))
    layout = Layout(str(tmp_path), servers, {})
    with ForkServer() as parent:
        parent.start(layout, servers)
    for server in servers:
        wait_until(functools.partial(ended, server), "the process has ended")
        assert "nowhere" in processes.last_lines(server)
        assert Path(server.dir + ".pid").read_text().split()[0].isdigit()
    with pytest.raises(Unavailable, match=r"(?s)tserver-0 has exited; the last lines of .*nowhere"):
        processes.require_running(layout, ["tserver-0"])


def test_reused_pid_is_not_taken_for_the_server(tmp_path):
    server = spec(tmp_path, "tserver-0")
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        processes.write_pid_file(server.dir + ".pid", other.pid)
        assert processes.running_pid(server) == other.pid
        Path(server.dir + ".pid").write_text(f"{other.pid} 1\n")
        assert processes.running_pid(server) is None
        other.communicate(b"\n", timeout=within(30))


def test_installation_unable_to_run_servers_is_reported(tmp_path, monkeypatch):
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho no module named nyala >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(broken))
    with pytest.raises(
        Unavailable, match="the server process failed to start: no module named nyala"
    ):
        ForkServer().start(Layout(str(tmp_path), (), {}), [spec(tmp_path, "tserver-0")])
    assert not list(tmp_path.glob("*.pid"))
