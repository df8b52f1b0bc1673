"""A cluster of one master whose other servers join with tokens: real processes, each a command."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from nyala.security import issue
from nyala.security.files import VARIABLES
from nyala.testing.layout import HOST, free_ports
from tests.waiting import wait_until, within


class JoiningCluster:
    """Commands and processes in one folder; used as a context manager, which stops all processes.

    Args:
        folder: for data, certificates and logs.
        options: options of the master, as `name=value`.
    """

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder = folder
        self.options = options
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        ports = free_ports(40)
        self._ports = iter(ports)
        self.address, self.join_address = self.free_address(), self.free_address()
        self._peer_address = self.free_address()
        self.admin = issue.initialise(str(folder / "authority"))
        self.master = issue.server(str(folder / "authority"), str(folder / "m"), [HOST], signs=True)

    def free_address(self) -> str:
        return f"{HOST}:{next(self._ports)}"

    def __enter__(self) -> "JoiningCluster":
        self.start_master()
        wait_until(lambda: self.run("token", "list").returncode == 0, "the master leads")
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()

    def start_master(self) -> None:
        words = ["master", "run", "--dir", "master", "--address", self.address]
        words += ["--peer-address", self._peer_address, "--web-address", ""]
        words += ["--join-address", self.join_address]
        for option in self.options:
            words += ["--set", option]
        self.spawn("master", words, self.master.variables)

    def stop(self, name: str) -> None:
        process = self.processes.pop(name)
        process.send_signal(signal.SIGTERM)
        process.wait(within(60))

    def spawn(self, name: str, words: list[str], variables: dict[str, str]) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-m", "nyala", *words], cwd=self.folder, stdout=log, stderr=log,
                env=self._environment(variables), start_new_session=True,
            )  # fmt: skip

    def _environment(self, variables: dict[str, str]) -> dict[str, str]:
        clean = {k: v for k, v in os.environ.items() if k not in VARIABLES}
        return {**clean, "NYALA_MASTERS": self.address, **variables}

    def run(
        self, *words: str, variables: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command as the administrator, or with the variables given."""
        known = self.admin.variables if variables is None else variables
        return subprocess.run(
            [sys.executable, "-m", "nyala", *words], cwd=self.folder, capture_output=True,
            text=True, timeout=within(120), env=self._environment(known),
        )  # fmt: skip

    def token(self, *words: str) -> str:
        made = self.run("token", "create", *words)
        assert made.returncode == 0, made.stderr
        return made.stdout.split()[0]

    def join_words(self, name: str, token: str) -> list[str]:
        words = ["tserver", "join", token, "--masters", self.join_address, "--dir", name]
        words += ["--address", self.free_address(), "--peer-address", self.free_address()]
        return [*words, "--web-address", "", "--timeout", "60"]

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def states(self) -> dict[str, str]:
        """Return the states of the tablet servers by uuid."""
        listed = self.run("tserver", "list", "--format", "csv").stdout.splitlines()[1:]
        return {row.split(",")[0]: row.split(",")[5].strip('"') for row in listed}
