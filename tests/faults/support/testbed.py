"""Three machines, each with an address, an ext4 disk, a master and a tablet server, as a MiniCluster."""

import os
from pathlib import Path

from nyala.testing import MiniCluster, local_cluster, processes
from nyala.testing.forkserver import ForkServer
from nyala.testing.layout import Layout, ServerSpec
from tests.cluster.kill_cycles import OPTIONS
from tests.faults.support.disks import Disk
from tests.faults.support.frozen import freeze
from tests.faults.support.hosts import LOOPBACK, PRIVATE, Host, network

ROLES = {"master": 7051, "tserver": 7050}


def _spec(root: Path, role: str, number: int, host: Host) -> ServerSpec:
    port, name = ROLES[role], f"{role}-{number}"
    public, peer, web = (f"{host.address}:{p}" for p in (port, port + 2000, port + 1000))
    return ServerSpec(name, role, str(root / name), public, peer, web)


class Testbed(MiniCluster):
    """A cluster with power failures and network partitions, with TLS if it is secure. Inside a sandbox only.

    Machine N has master-N and tserver-N, both on its one disk. The servers' output and pid files
    are outside of these disks, so that they survive.

    Attributes:
        hosts: the machines of the network.
        disks: one of each machine.
    """

    def __init__(self, folder: Path, secure: bool = False) -> None:
        self.hosts = network(3, PRIVATE if secure else LOOPBACK)
        self._parents = [ForkServer(bound=True) for _ in self.hosts]
        self.disks = [Disk(folder / f"image-{n}", folder / f"disk-{n}") for n in range(3)]
        servers = []
        for role in ROLES:
            for number, host in enumerate(self.hosts):
                servers.append(_spec(folder, role, number, host))
                target = self.disks[number].folder / f"{role}-{number}"
                target.mkdir()
                Path(servers[-1].dir).symlink_to(target)
        os.sync()
        layout = Layout(str(folder), tuple(servers), OPTIONS, secure)
        local_cluster.use_credentials(layout)
        layout.save()
        for server in servers:
            with self.hosts[_number(server.name)].entered():
                self._forkserver(server.name).start(layout, [server])
        super().__init__(dir=str(folder))

    def start(self, name: str, *, wait: bool = True) -> None:
        """Start a server on its machine."""
        with self.hosts[_number(name)].entered():
            super().start(name, wait=False)
        if wait:
            self.wait_healthy()

    def close(self) -> None:
        """Stop every process."""
        super().close()
        for parent in self._parents:
            parent.close()

    def _forkserver(self, name: str) -> ForkServer:
        return self._parents[_number(name)]  # its forks stay in its network namespace

    def pid(self, name: str) -> int:
        """Return the pid of a running server."""
        pid = processes.running_pid(self._layout.server(name))
        assert pid is not None, f"{name} does not run"
        return pid

    def log(self, name: str) -> str:
        """Return the output of a server so far."""
        return Path(self._layout.server(name).log).read_text(errors="replace")

    def cut(self, machines: list[int]) -> None:
        """Cut the power of machines at once: their processes end, and unsynced data is lost."""
        names = [f"{role}-{n}" for n in machines for role in ROLES]
        freeze([self.pid(name) for name in names])
        for number in machines:
            self.disks[number].cut()
        for name in names:
            self.kill(name)

    def power_on(self, machines: list[int]) -> None:
        """Mount the disks of machines again and start their servers; returns without waiting for them."""
        for number in machines:
            self.disks[number].power_on()
        for number in machines:
            for role in ROLES:
                self.start(f"{role}-{number}", wait=False)

    def others(self, number: int) -> list[Host]:
        """Return all hosts except one."""
        return [h for h in self.hosts if h is not self.hosts[number]]


def _number(name: str) -> int:
    return int(name.rpartition("-")[2])
