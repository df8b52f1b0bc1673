"""Ports of a local cluster stay reserved while their server is down."""

import contextlib
import socket

import pytest

from nyala.testing import layout
from nyala.testing.layout import HOST


def listening(port: int, *, reuse: bool = True) -> socket.socket:
    """Listen as a server does, or as an unrelated program."""
    sock = socket.socket()
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse)
        sock.bind((HOST, port))
        sock.listen()
    except OSError:
        sock.close()
        raise
    return sock


def test_reserved_port_is_reusable_by_its_server_only():
    (port,) = layout.free_ports(1)
    address = f"{HOST}:{port}"
    with layout.reserve([address]):
        for _ in range(2):
            assert layout.ports_in_use([address]) == []
            with pytest.raises(OSError, match="in use"):
                listening(port, reuse=False)
            with listening(port):
                assert layout.ports_in_use([address]) == [address]
    with listening(port, reuse=False):
        pass


def test_failed_port_reservation_holds_nothing():
    free, taken = layout.free_ports(2)
    with listening(taken), pytest.raises(OSError, match="in use"):
        layout.reserve([f"{HOST}:{free}", f"{HOST}:{taken}"])
    with listening(free, reuse=False):
        pass


def test_cluster_that_gets_certificates_gets_addresses_for_logins(tmp_path):
    made = layout.plan(str(tmp_path), 3, 1, base_port=None, options={})
    assert made.join_addresses == []
    with contextlib.ExitStack() as taken:
        first = int(made.servers[0].address.rpartition(":")[2]) + layout.JOIN_ABOVE
        with contextlib.suppress(OSError):  # in use already
            taken.enter_context(listening(first))
        found = layout.secured(made)
    assert found.secure
    assert len(set(found.join_addresses)) == 3
    assert f"{HOST}:{first}" not in found.join_addresses
    others = {a for s in made.servers for a in s.addresses}
    assert not others & set(found.join_addresses)
    assert [s.join_address for s in found.servers if s.role == "tserver"] == [""]
    assert layout.secured(found) == found
