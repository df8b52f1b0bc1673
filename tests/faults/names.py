"""Masters listed by names; one is replaced under its name at another address: `python -m tests.faults.names`.

Each server runs on a machine of its own with its own interface, and finds the others by a hosts file. A
master's machine is lost; its replacement runs on another machine and gets its name. No other server and no
client is restarted, and none gets another list. Inside a sandbox only (sandbox.py).
"""

import argparse
import csv
import io
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa

import nyala
from nyala.common.errors import NyalaError
from tests.faults.support.hosts import Host, network
from tests.waiting import wait_until

NAMES = ("m1.test", "m2.test", "m3.test")
LIST = ",".join(f"{name}:7051" for name in NAMES)
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string())])
LIMIT_S = 120


class HostsFile:
    """The names of all machines, in place of /etc/hosts in this mount namespace."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "hosts"
        self._file.touch()
        subprocess.run(["mount", "--bind", str(self._file), "/etc/hosts"], check=True)

    def write(self, addresses: dict[str, str]) -> None:
        """Write the addresses of names; the file itself stays, since it is mounted."""
        lines = [f"{address} {name}" for name, address in addresses.items()]
        self._file.write_text("\n".join(["127.0.0.1 localhost", *lines, ""]))


class Writer(threading.Thread):
    """Writes rows until it is stopped; an error ends it."""

    def __init__(self, table: Any) -> None:
        super().__init__(daemon=True)
        self._table, self._stopped = table, threading.Event()
        self.rows, self.error = 0, ""

    def run(self) -> None:
        try:
            while not self._stopped.is_set():
                self._table.upsert([{"k": self.rows, "v": "x"}]).raise_for_errors()
                self.rows += 1
        except NyalaError as err:
            self.error = str(err)

    def stop(self) -> None:
        self._stopped.set()
        self.join(LIMIT_S)


def command(*words: object) -> list[str]:
    return [sys.executable, "-m", "nyala.cli.main", *map(str, words)]


def cli(*words: object) -> str:
    done = subprocess.run(command(*words), capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
    return done.stdout


def start(host: Host, role: str, name: str, folder: Path) -> "subprocess.Popen[bytes]":
    """Start a server on a machine, with the list of names of all masters."""
    port = 7051 if role == "master" else 7050
    with host.entered(), (folder.parent / f"{folder.name}.log").open("wb") as log:
        words = ("--dir", folder, "--master-addresses", LIST, "--web-address", "")
        named = ("--address", f"{name}:{port}", "--peer-address", f"{name}:{port + 2000}")
        return subprocess.Popen(command(role, "run", *words, *named), stdout=log, stderr=log)


def healthy() -> bool:
    return not subprocess.run(
        command("cluster", "ksck", "--masters", LIST), capture_output=True, check=False
    ).returncode  # fmt: skip


def leader() -> str:
    """Return the public address of the leader master; empty: none leads."""
    listed = subprocess.run(
        command("master", "list", "--masters", LIST, "--format", "csv"),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    rows = csv.DictReader(io.StringIO(listed.stdout))
    return next((r["address"] for r in rows if r["role"] == "LEADER"), "")


def replace(folder: Path, hosts: HostsFile, addresses: dict[str, str], spare: Host) -> Any:
    """Replace the master m3.test by one on a spare machine, by the commands of the page."""
    members = cli("local_replica", "cmeta", "print_replica_uuids", "catalog", "--dir", folder / "m1",
                  "--format", "csv")  # fmt: skip
    (uuid,) = [line.split(",")[0] for line in members.splitlines() if ",m3.test:7051," in line]
    target = folder / "replacement"
    cli("fs", "format", "--dir", target, "--role", "master", "--uuid", uuid)
    cli(
        "local_replica",
        "copy_from_remote",
        "catalog",
        wait_until(leader, "a leader"),
        "--dir",
        target,
    )
    hosts.write(addresses | {"m3.test": spare.address})
    return start(spare, "master", "m3.test", target)


def run(folder: Path) -> None:
    *machines, spare = network(5)
    hosts = HostsFile(folder)
    addresses = dict(zip((*NAMES, "t1.test"), (m.address for m in machines), strict=True))
    hosts.write(addresses)
    masters = {name: start(machine, "master", name, folder / name[:2])
               for name, machine in zip(NAMES, machines, strict=False)}  # fmt: skip
    tserver = start(machines[3], "tserver", "t1.test", folder / "t1")
    wait_until(healthy, "a healthy cluster", LIMIT_S)
    with nyala.connect(LIST, timeout_ms=LIMIT_S * 1000) as client:
        writer = Writer(client.create_table("before", SCHEMA, ["k"], replicas=1))
        writer.start()
        try:
            masters["m3.test"].kill()
            subprocess.run(["ip", "link", "set", "h3", "down"], check=True)
            client.create_table("without", SCHEMA, ["k"], replicas=1)
            spare_master = replace(folder, hosts, addresses, spare)
            wait_until(healthy, "the replacement is a healthy master", LIMIT_S)
            second = {"m2.test:7051": "m2.test"}.get(wait_until(leader, "a leader"), "m1.test")
            masters[second].kill()
            client.create_table(
                "after", SCHEMA, ["k"], replicas=1
            )  # needs the vote of the replacement
            wait_until(lambda: writer.rows > 100 or writer.error, "more writes", LIMIT_S)
        finally:
            writer.stop()
        assert not writer.error, writer.error
        assert client.table("before").count() == writer.rows
        assert client.tables() == ["after", "before", "without"]
    (left,) = {"m1.test", "m2.test"} - {second}
    for process in (masters[left], tserver, spare_master):
        assert process.poll() is None, "no server was restarted or has ended"
    print(f"{writer.rows} rows written during the replacement")


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", type=Path, required=True, help="an empty folder")
    run(parser.parse_args().dir)
    return 0


if __name__ == "__main__":
    sys.exit(main())
