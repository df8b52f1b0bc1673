"""Three machines without a common disk or address, under the demo's load: `python -m tests.faults.machines`.

Each machine has a network namespace with an interface of its own, at an address that is none of loopback's,
a master and a tablet server. The masters' certificates come from `nyala init`, the tablet servers join with a
token. On a fourth machine a user logs in with a password, and runs `nyala pipeline flights` there. Each
of the six servers is killed with kill -9 during it, one after the other, and started again. Inside a sandbox
only (sandbox.py).
"""

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import nyala
from examples.flights_demo.checks import differences
from examples.flights_demo.raw import Raw
from nyala.security.files import VARIABLES
from nyala.spark.flights.dataset import KEYS
from tests.faults.support.hosts import PRIVATE, Host, network
from tests.waiting import wait_until, within

MACHINES, SLICES = 3, 4
PASSWORD = "correct horse battery staple"


class Machines:
    """The servers and the user's machine.

    Args:
        folder: an empty folder; each server has its files in a folder of its own in it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        *self.hosts, self.client = network(MACHINES + 1, PRIVATE)
        self.masters = ",".join(f"{h.address}:7051" for h in self.hosts)
        self.join = ",".join(f"{h.address}:10051" for h in self.hosts)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        authority = folder / "authority"
        self.admin = {
            "NYALA_CA": f"{authority}/ca.crt", "NYALA_CERT": f"{authority}/admin.crt",
            "NYALA_KEY": f"{authority}/admin.key",
        }  # fmt: skip
        self.cli("init", authority, variables={})
        for host in self.hosts:
            made = folder / f"master-{host.number}-certs"
            words = ("--dir", authority, "--host", host.address, "--out", made, "--signs")
            self.cli("cert", "server", *words, variables={})

    def environ(self, variables: Mapping[str, str]) -> dict[str, str]:
        """Return an environment without other credentials than those given."""
        clean = {k: v for k, v in os.environ.items() if k not in VARIABLES}
        home = {"XDG_DATA_HOME": f"{self.folder}/home"}
        return {**clean, "NYALA_MASTERS": self.masters, **home, **variables}

    def cli(
        self, *words: object, variables: Mapping[str, str] | None = None, text: str = ""
    ) -> subprocess.CompletedProcess[str]:
        """Run a command as the administrator, or with the variables given; it must succeed."""
        done = self.tried(*words, variables=variables, text=text)
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done

    def tried(
        self, *words: object, variables: Mapping[str, str] | None = None, text: str = ""
    ) -> subprocess.CompletedProcess[str]:
        """Run a command; it may fail."""
        return subprocess.run(
            _command(*words), input=text, capture_output=True, text=True, timeout=within(120), check=False,
            env=self.environ(self.admin if variables is None else variables), cwd=self.folder,
        )  # fmt: skip

    def start_master(self, number: int) -> None:
        """Start the master of a machine, with the certificate that was made for it."""
        host, certs = self.hosts[number - 1], f"{self.folder}/master-{number}-certs"
        at = host.address
        words = [
            "--address",
            f"{at}:7051",
            "--peer-address",
            f"{at}:9051",
            "--join-address",
            f"{at}:10051",
        ]
        words += ["--web-address", f"{at}:8051", "--master-addresses", self.masters]
        named = {"CA": "ca.crt", "CERT": "server.crt", "KEY": "server.key"}
        variables = {f"NYALA_{k}": f"{certs}/{v}" for k, v in named.items()}
        name = f"master-{number}"
        self._spawn(host, name, ["master", "run", "--dir", name, *words], variables)

    def start_tserver(self, number: int, token: str = "") -> None:
        """Start the tablet server of a machine, which joins first if a token is given."""
        host, name = self.hosts[number - 1], f"tserver-{number}"
        at = host.address
        words = ["--dir", name, "--address", f"{at}:7050", "--peer-address", f"{at}:9050"]
        words += ["--web-address", f"{at}:8050"]
        if token:
            role = ["tserver", "join", token, "--masters", self.join]
        else:
            role = ["tserver", "run", "--master-addresses", self.masters]
        self._spawn(host, name, [*role, *words], {})

    def _spawn(self, host: Host, name: str, words: list[str], variables: dict[str, str]) -> None:
        with host.entered(), (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                _command(*words),
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env=self.environ(variables),
            )

    def healthy(self) -> bool:
        """Return whether ksck finds no fault."""
        return self.tried("cluster", "ksck").returncode == 0

    def kill_and_start(self, name: str) -> None:
        """`kill -9` a server, start it again, and wait until the cluster is healthy."""
        self.processes[name].kill()
        self.processes[name].wait()
        wait_until(lambda: not self.healthy(), f"the cluster is not healthy without {name}")
        role, _, number = name.partition("-")
        (self.start_master if role == "master" else self.start_tserver)(int(number))
        wait_until(self.healthy, f"a healthy cluster after {name} was killed")


def _command(*words: object) -> list[str]:
    return [sys.executable, "-m", "nyala.cli.main", *map(str, words)]


def start(machines: Machines) -> dict[str, str]:
    """Start all servers; return the variables of a user who has logged in."""
    for number in range(1, MACHINES + 1):
        machines.start_master(number)
    made = wait_until(
        lambda: machines.tried("token", "create", "--role", "tserver", "--uses", MACHINES).stdout,
        "a token",
    )
    for number in range(1, MACHINES + 1):
        machines.start_tserver(number, made.split()[0])
    wait_until(
        lambda: machines.tried("tserver", "list").stdout.count("ALIVE") == MACHINES, "all servers"
    )
    words = ("user", "add", "loader", "--role", "owner", "--password-stdin")
    machines.cli(*words, text=f"{PASSWORD}\n")
    own = {"XDG_DATA_HOME": f"{machines.folder}/loader"}
    with machines.client.entered():
        ca = ("--ca", machines.folder / "authority" / "ca.crt", "--login", machines.join)
        login = ("login", "--user", "loader", "--password-stdin", *ca)
        machines.cli(*login, variables=own, text=f"{PASSWORD}\n")
    return own


def compare(machines: Machines) -> int:
    """Compare every table with the raw files; return the number of rows of the flights."""
    raw = Raw(None, machines.folder / "scratch")
    ca, cert, key = machines.admin.values()
    with nyala.connect(machines.masters, ca=ca, cert=cert, key=key) as client:
        for name, keys in KEYS.items():
            actual = client.table(name).scan().to_arrow()
            found = differences(actual, raw.final(name), list(keys))
            assert not found, f"{name}: {found}"
        return client.table("flights").count()


def run(folder: Path) -> None:
    machines = Machines(folder)
    own = start(machines)
    words = ("pipeline", "flights", "--slices", SLICES, "--work", folder / "work")
    with machines.client.entered(), (folder / "pipeline.log").open("wb") as log:
        pipeline = subprocess.Popen(
            _command(*words), env=machines.environ(own), cwd=folder, stdout=log, stderr=log,
            start_new_session=True,
        )  # fmt: skip
    try:
        killed = []
        wait_until(lambda: machines.tried("table", "list").stdout.count("flights"), "the tables")
        for name in [f"{r}-{n}" for n in range(1, MACHINES + 1) for r in ("tserver", "master")]:
            under_way = pipeline.poll() is None
            machines.kill_and_start(name)
            killed.append(f"{name} ({'loading' if under_way else 'after the load'})")
        status = pipeline.wait(within(600))
        assert status == 0, (folder / "pipeline.log").read_text()[-3000:]
    finally:
        if pipeline.poll() is None:
            os.killpg(pipeline.pid, signal.SIGKILL)
    wait_until(machines.healthy, "a healthy cluster")
    rows = compare(machines)
    machines.cli("cluster", "ksck", "--checksum")
    print(f"{rows} flights equal to the raw data; killed: {', '.join(killed)}")


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", type=Path, required=True, help="an empty folder")
    run(parser.parse_args().dir)
    return 0


if __name__ == "__main__":
    sys.exit(main())
