"""Addresses host:port: their form, the check that only loopback ones are bound, a bound for state by them."""

import ipaddress
import socket
from typing import TypeVar

from nyala.common.errors import Forbidden, InvalidArgument

K = TypeVar("K")
V = TypeVar("V")
KEPT = 1_000
"""Number of addresses of servers for which state is kept, in mappings that would grow with each new one."""

_MAX_PORT = 65535


def parse(address: str) -> tuple[str, int]:
    """Split "host:port" or "[ipv6]:port".

    Raises:
        InvalidArgument: neither form; the message shows the expected one.
    """
    host, colon, port = address.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        if "://" in address:
            raise InvalidArgument(f"{address!r} is a URL; omit {address.partition('://')[0]}://")
        raise InvalidArgument(f"the address {address!r} is ambiguous; write IPv6 as [::1]:7051")
    good = colon and host and not any(c.isspace() or c == "/" for c in host)
    if not good or not (port.isascii() and port.isdigit()) or int(port) > _MAX_PORT:
        raise InvalidArgument(
            f"{address!r} is not an address; write host:port, for instance 127.0.0.1:7051"
        )
    return host, int(port)


def join(host: str, port: int) -> str:
    """Format an address; the inverse of `parse`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def to_bind(address: str, *, secured: bool = False) -> tuple[str, int]:
    """Return the host, as a numeric address, and the port to bind; a name of a host is resolved now.

    Args:
        address: host:port.
        secured: the process has credentials, so that it may bind any address.

    Raises:
        InvalidArgument: it is not an address, or a name without one.
        Forbidden: not secured, and it is not a loopback address, or a name that has other addresses, or none.
    """
    host, port = parse(address)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as err:
        if not secured:
            return require_loopback(address)
        raise InvalidArgument(
            f"the host of {address} cannot be resolved: {err}; check its name"
        ) from err
    if secured:
        return str(found[0][4][0]), port
    numbers = [require_loopback(join(str(one[4][0]), port)) for one in found]
    return require_loopback(address) if host == "localhost" else numbers[0]


def require_loopback(address: str) -> tuple[str, int]:
    """Return the host, as a numeric address, and the port. Names are not resolved, except localhost.

    Raises:
        InvalidArgument: it is not an address.
        Forbidden: it is not a loopback address.
    """
    host, port = parse(address)
    if host == "localhost":
        return "127.0.0.1", port
    try:
        loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = False
    if not loopback:
        raise Forbidden(
            f"refusing to bind {address} without certificates: any client that reaches that address could "
            f"read and change all data; bind a loopback address such as 127.0.0.1:{port}, or make "
            "certificates (nyala init, nyala cert server) and name them with --ca, --cert and --key"
        )
    return host, port


def keep_newest(kept: dict[K, V], key: K, value: V, most: int = KEPT) -> None:
    """Set an entry, which becomes the newest, and drop the oldest ones above a number.

    Args:
        kept: the mapping, oldest entries first.
        key: the entry's key.
        value: the entry's value.
        most: number of entries to keep.
    """
    kept.pop(key, None)
    kept[key] = value
    while len(kept) > most:
        del kept[next(iter(kept))]
