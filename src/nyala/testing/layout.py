"""Names, ports and directories of a local cluster, and its state file.

Masters listen on 7051 + 100 i, tablet servers on 7050 + 100 i, web ports 1000 above, peer ports 2000 above,
and logins 3000 above masters; a base port shifts all of them. Test clusters use free ports instead.
"""

import socket
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from random import SystemRandom

import msgspec

from nyala.common.errors import InvalidArgument, NotFound
from nyala.security.files import CERTS, CredentialFiles

HOST = "127.0.0.1"
DEFAULT_BASE = 7050
JOIN_ABOVE = 3_000
"""Join port of a master, above its public port."""
STATE_FILE = "cluster.json"
BELOW_EPHEMERAL = range(12_000, 32_000)
"""Ports for `free_ports`: outgoing connections take theirs above these on Linux, macOS and Windows."""


@dataclass(frozen=True, slots=True)
class ServerSpec:
    """One server of a local cluster.

    Attributes:
        name: "master-0", "tserver-2".
        role: "master" or "tserver".
        dir: its data directory.
        address: public host:port.
        peer_address: host:port of the peer port.
        web_address: host:port of the web port.
        join_address: host:port of a master's port at which users log in and servers join; empty: none.
    """

    name: str
    role: str
    dir: str
    address: str
    peer_address: str
    web_address: str
    join_address: str = ""

    @property
    def addresses(self) -> tuple[str, ...]:
        """All listen addresses."""
        every = (self.address, self.peer_address, self.web_address, self.join_address)
        return tuple(address for address in every if address)

    @property
    def log(self) -> str:
        """Log file of its standard output and error."""
        return self.dir + ".log"


@dataclass(frozen=True, slots=True)
class Layout:
    """A local cluster: its directory and servers.

    Attributes:
        dir: its directory.
        servers: its servers.
        options: of every server.
        secure: connections are encrypted, and need certificates; these are in the directory `certs`.
    """

    dir: str
    servers: tuple[ServerSpec, ...]
    options: dict[str, str]
    secure: bool = False

    @property
    def masters(self) -> str:
        """Master addresses, as for `nyala.connect`."""
        return ",".join(s.address for s in self.servers if s.role == "master")

    @property
    def client_files(self) -> CredentialFiles | None:
        """Credentials of the user who made it, who is an administrator; None: it is not secure."""
        if not self.secure:
            return None
        folder = Path(self.dir, CERTS)
        return CredentialFiles(*(str(folder / f) for f in ("ca.crt", "admin.crt", "admin.key")))

    @property
    def public_addresses(self) -> list[str]:
        """Addresses of its servers for clients."""
        return [s.address for s in self.servers]

    @property
    def join_addresses(self) -> list[str]:
        """Addresses at which users log in; none if it is not secure."""
        return [s.join_address for s in self.servers if s.join_address]

    @property
    def base_port(self) -> int:
        """Port of the first tablet server."""
        return int(self.server("tserver-0").address.rpartition(":")[2])

    def server(self, name: str) -> ServerSpec:
        """Return a server by name.

        Raises:
            NotFound: no such server; the message lists them.
        """
        for server in self.servers:
            if server.name == name:
                return server
        raise NotFound(f"no server {name!r}; there are: {', '.join(s.name for s in self.servers)}")

    def save(self) -> None:
        """Write the state file, so that `status` and `down` find the cluster."""
        path = Path(self.dir, STATE_FILE)
        path.touch(mode=0o600)
        path.write_bytes(msgspec.json.format(msgspec.json.encode(self)))


def load(directory: str) -> Layout | None:
    """Return the cluster of a directory, or None.

    Raises:
        InvalidArgument: the state file is invalid.
    """
    path = Path(directory, STATE_FILE)
    if not path.exists():
        return None
    try:
        return msgspec.json.decode(path.read_bytes(), type=Layout)
    except msgspec.MsgspecError as err:
        raise InvalidArgument(f"{path} does not describe a local cluster: {err}") from err


def plan(
    directory: str, masters: int, tservers: int, *, base_port: int | None, options: dict[str, str],
    secure: bool = False,
) -> Layout:  # fmt: skip
    """Return the layout of a new cluster.

    Args:
        directory: directory of the cluster; each server has a subdirectory.
        masters: number of masters; odd.
        tservers: number of tablet servers.
        base_port: port of the first tablet server; None: free ports.
        options: passed to every server.
        secure: with certificates.

    Raises:
        InvalidArgument: an even number of masters, no master or tablet server, or ports out of range.
    """
    if masters < 1 or masters % 2 == 0:
        raise InvalidArgument(
            f"{masters} masters: choose an odd number; an even one tolerates no more failures"
        )
    if tservers < 1:
        raise InvalidArgument(
            "a cluster needs at least one tablet server; set tservers to 1 or more"
        )
    names = [("master", i) for i in range(masters)] + [("tserver", i) for i in range(tservers)]
    if base_port is None:
        ports = iter(free_ports(4 * len(names)))
        fours = [(next(ports), next(ports), next(ports), next(ports)) for _ in names]
    else:
        firsts = [base_port + 100 * i + (role == "master") for role, i in names]
        fours = [(p, p + 2000, p + 1000, p + JOIN_ABOVE) for p in firsts]
        highest = max(firsts) + (JOIN_ABOVE if secure else 2000)
        if base_port < 1024 or highest > 65535:
            raise InvalidArgument(
                f"base port {base_port}: the cluster needs ports 1024 to 65535 and would use up to "
                f"{highest}; choose another"
            )
    root = str(Path(directory).resolve())
    servers = tuple(
        ServerSpec(
            f"{role}-{i}",
            role,
            f"{root}/{role}-{i}",
            f"{HOST}:{public}",
            f"{HOST}:{peer}",
            f"{HOST}:{web}",
            f"{HOST}:{join}" if secure and role == "master" else "",
        )
        for (role, i), (public, peer, web, join) in zip(names, fours, strict=True)
    )
    return Layout(root, servers, options, secure)


def secured(found: Layout) -> Layout:
    """Return a cluster with certificates, whose masters get addresses at which users log in.

    Args:
        found: a cluster without certificates. It does not run.
    """
    used = {address for server in found.servers for address in server.addresses}
    servers = []
    for server in found.servers:
        if server.role == "master" and not server.join_address:
            host, _, port = server.address.rpartition(":")
            join = f"{host}:{int(port) + JOIN_ABOVE}"
            if int(port) + JOIN_ABOVE > 65_535 or join in used or ports_in_use([join]):
                join = f"{host}:{free_ports(1)[0]}"
            used.add(join)
            server = replace(server, join_address=join)
        servers.append(server)
    return replace(found, servers=tuple(servers), secure=True)


def free_ports(count: int) -> list[int]:
    """Return distinct ports that were free a moment ago; no outgoing connection takes one of them."""
    if not count:
        return []
    with ExitStack() as bound:
        found: list[int] = []
        for port in SystemRandom().sample(BELOW_EPHEMERAL, len(BELOW_EPHEMERAL)):
            if len(found) == count:
                return found
            sock = bound.enter_context(socket.socket())
            with suppress(OSError):  # in use
                sock.bind((HOST, port))
                found.append(port)
    raise InvalidArgument(
        f"{count} free ports are needed and {len(found)} of {HOST} are free between "
        f"{BELOW_EPHEMERAL[0]} and {BELOW_EPHEMERAL[-1]}; stop other servers or pass a base port"
    )


def reserve(addresses: Iterable[str]) -> ExitStack:
    """Reserve the addresses of servers, also while they are down, until the result is closed.

    An unused port may be assigned to any program that requests a free one, or to an outgoing connection. A
    socket that is bound but does not listen prevents that, but not the server's own bind: both set
    SO_REUSEADDR.

    Raises:
        OSError: an address is in use.
    """
    with ExitStack() as held:
        for address in addresses:
            host, _, port = address.rpartition(":")
            sock = held.enter_context(socket.socket())
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((host, int(port)))
        return held.pop_all()


def ports_in_use(addresses: Iterable[str]) -> list[str]:
    """Return the addresses that are in use."""
    taken = []
    for address in addresses:
        host, _, port = address.rpartition(":")
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                sock.bind((host, int(port)))
            except OSError:
                taken.append(address)
    return taken
