"""Machines of a test network: network namespaces on one bridge, with iptables between them.

Each host has one address 127.77.0.N, which is a loopback address to the servers, or 10.77.0.N, which is none;
it never leaves the sandbox. The test itself is number 100. A host drops packets silently, as a
broken switch does. Use it inside a sandbox only (sandbox.py).
"""

import contextlib
import ctypes
import os
import subprocess
from collections.abc import Iterator

CLONE_NEWNET = 0x40000000
LOOPBACK, PRIVATE = "127.77.0.", "10.77.0."
OWN_NUMBER = 100
_libc = ctypes.CDLL(None, use_errno=True)


def _done(result: int) -> None:
    if result:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _shell(script: str) -> None:
    subprocess.run(["sh", "-e", "-c", script], check=True)


def _own_address(device: str, address: str) -> str:
    """Return a script that replaces 127.0.0.0/8 on `lo` by one address on a device."""
    return f"""
ip link set lo up
ip addr del 127.0.0.1/8 dev lo
ip addr add 127.0.0.1/32 dev lo
ip addr add {address}/24 dev {device}
ip link set {device} up
for each in all {device}; do echo 1 >/proc/sys/net/ipv4/conf/$each/route_localnet; done
"""


class Host:
    """One machine: a network namespace; processes are started in it by `entered`."""

    def __init__(self, number: int, prefix: str = LOOPBACK) -> None:
        self.number, self.address = number, f"{prefix}{number}"
        home = os.open("/proc/self/ns/net", os.O_RDONLY)
        try:
            _done(_libc.unshare(CLONE_NEWNET))
            self._namespace = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        finally:
            _done(_libc.setns(home, CLONE_NEWNET))
        self._home = home
        name, own = f"h{number}", f"/proc/{os.getpid()}/fd/{home}"
        with self.entered():  # one end of the link in the host, the other at the bridge
            _shell(f"ip link add eth0 type veth peer name {name} netns {own}")
            _shell(
                _own_address("eth0", self.address) + "iptables -N FAULT; iptables -A INPUT -j FAULT"
            )
        _shell(f"ip link set {name} master br0 up")

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Context in which processes and connections of this thread belong to the host."""
        _done(_libc.setns(self._namespace, CLONE_NEWNET))
        try:
            yield
        finally:
            _done(_libc.setns(self._home, CLONE_NEWNET))

    def drop_packets_of(self, *others: "Host") -> None:
        """Drop all packets from these hosts, and from no others."""
        drops = [f"-A FAULT -s {o.address} -j DROP" for o in others]
        rules = "\n".join(["*filter", ":FAULT - [0:0]", *drops, "COMMIT", ""])
        with self.entered():
            command = ["iptables-restore", "--noflush", "--wait"]
            subprocess.run(command, input=rules, text=True, check=True)


def network(count: int, prefix: str = LOOPBACK) -> list[Host]:
    """Make a bridge with `count` hosts; they reach each other and this process."""
    _shell("ip link add br0 type bridge\n" + _own_address("br0", f"{prefix}{OWN_NUMBER}"))
    return [Host(n, prefix) for n in range(1, count + 1)]


def heal(hosts: list[Host]) -> None:
    """End all partitions."""
    for host in hosts:
        host.drop_packets_of()
