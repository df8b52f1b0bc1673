"""MiniCluster: a local cluster of real processes as a context manager, for tests."""

import re
import shutil
import signal
import tempfile
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from nyala.client import Client, connect
from nyala.common.errors import NotFound, Unavailable
from nyala.security import known
from nyala.testing import layout, local_cluster, processes
from nyala.testing.forkserver import ForkServer
from nyala.testing.warm import warm_kernels

NOTE = "last warnings of the servers:"
NOTED_LINES = 5
LOG_TAIL = 2_000
"""Lines at the end of a server's log in which warnings are looked for."""
WARNS = re.compile(r"^\s*\S+ \S+ [WEC] |Traceback|Error\b")


class MiniCluster:
    """Masters and tablet servers as processes on free ports, which end with this process, even when killed.

    Args:
        masters: number of masters; odd.
        tservers: number of tablet servers.
        dir: data directory, kept; None: a temporary directory, removed at the end.
        options: options of every server, for instance {"flush_bytes": "1000000"}.
        secure: connections are encrypted, and need certificates, which all processes of this user find.
            Without, as by default, tests take less time.

    Raises:
        TimedOut, Unavailable: not healthy in time; with the end of a server's log.
    """

    def __init__(
        self, masters: int = 3, tservers: int = 3, dir: str | None = None,
        options: dict[str, str] | None = None, secure: bool = False,
    ) -> None:  # fmt: skip
        self._temporary = dir is None
        self.dir = dir or tempfile.mkdtemp(prefix="nyala-mini-")
        known = layout.load(self.dir)
        self._layout = known or layout.plan(
            self.dir, masters, tservers, base_port=None, options=options or {}, secure=secure
        )
        own = [] if known else [a for s in self._layout.servers for a in s.addresses]
        self._reserved: ExitStack = layout.reserve(own)
        self._parent = ForkServer(bound=True)
        try:
            warm_kernels()
            local_cluster.start(self._layout, self._parent)
        except BaseException:
            self.close()  # also when interrupted
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop every process; an error in the block gets the last warnings of the servers as a note."""
        if error is not None and (lines := self._warnings()):
            error.add_note("\n".join((NOTE, *lines)))
        self.close()

    def _warnings(self) -> list[str]:
        """Return the last lines with warnings and errors in the logs of the servers, in their order."""
        found = []
        for server in self._layout.servers:
            lines = processes.last_lines(server, LOG_TAIL).splitlines()
            found += [f"{server.name}.log: {line.strip()}" for line in lines if WARNS.search(line)]
        return sorted(found, key=lambda line: line.partition(": ")[2])[-NOTED_LINES:]

    def close(self) -> None:
        """Stop every process; remove the data if the directory is temporary."""
        processes.stop(self._layout)
        known.forget(self._layout.public_addresses, self._layout.client_files)
        self._parent.close()
        self._reserved.close()
        if self._temporary:
            shutil.rmtree(self.dir, ignore_errors=True)

    @property
    def masters(self) -> str:
        """Master addresses, as for `nyala.connect`."""
        return self._layout.masters

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables with which other processes use the cluster, as its administrator."""
        files = self._layout.client_files
        return {"NYALA_MASTERS": self.masters} | ({} if files is None else files.variables)

    @property
    def names(self) -> list[str]:
        """Names of all servers: "master-0", ..., "tserver-0", ..."""
        return [s.name for s in self._layout.servers]

    def connect(self, timeout_ms: int = 60_000) -> Client:
        """Return a new client of this cluster."""
        return connect(self.masters, timeout_ms=timeout_ms)

    def address(self, name: str) -> str:
        """Public address of a server."""
        return self._layout.server(name).address

    def web_address(self, name: str) -> str:
        """Address of a server's web port."""
        return self._layout.server(name).web_address

    def data_dir(self, name: str) -> str:
        """Data directory of a server."""
        return self._layout.server(name).dir

    def running(self, name: str) -> bool:
        """Return True if a server's process runs (a paused one does)."""
        return processes.running_pid(self._layout.server(name)) is not None

    def kill(self, name: str) -> None:
        """Send SIGKILL; return when the process has exited.

        Raises:
            Unavailable: it does not run.
            TimedOut: it does not exit.
        """
        processes.end(self._layout.server(name), signal.SIGKILL)

    def stop(self, name: str) -> None:
        """Send SIGTERM for an orderly stop; return when the process has exited. Raises as `kill`."""
        processes.end(self._layout.server(name), signal.SIGTERM)

    def pause(self, name: str) -> None:
        """Pause a server (SIGSTOP)."""
        self._signal(name, signal.SIGSTOP)

    def resume(self, name: str) -> None:
        """Resume a paused server."""
        self._signal(name, signal.SIGCONT)

    def start(self, name: str, *, wait: bool = True) -> None:
        """Start a stopped server, with its data and ports.

        Args:
            name: name of the server.
            wait: until it and all other running servers are alive for the masters.
        """
        server = self._layout.server(name)
        if processes.running_pid(server) is None:
            self._forkserver(name).start(self._layout, [server])
        if wait:
            local_cluster.wait_healthy(self._layout)

    def wait_healthy(self) -> None:
        """Wait until a master leads and all running servers are alive for it."""
        local_cluster.wait_healthy(self._layout)

    def leader_master(self) -> str:
        """Return the name of the master that leads.

        Raises:
            TimedOut: no leader in time.
        """
        with self.connect() as client:
            leader = next(s.address for s in client.servers() if s.leader)
        return self._name_of(leader)

    def leaders(self, table: str) -> dict[str, str]:
        """Return the name of the leader's server for each tablet of a table."""
        with self.connect() as client:
            places = client.table(table).tablets()
        return {p.id: self._name_of(p.leader) for p in places if p.leader}

    def _forkserver(self, name: str) -> ForkServer:
        """Return the fork server of a server."""
        return self._parent

    def _name_of(self, address: str) -> str:
        for server in self._layout.servers:
            if server.address == address:
                return server.name
        raise NotFound(f"no server of this cluster has the address {address}")

    def _signal(self, name: str, what: signal.Signals) -> None:
        if not processes.send(self._layout.server(name), what):
            raise Unavailable(f"{name} does not run")
