"""First contact of a client with masters whose handshakes take seconds, as on an overloaded machine."""

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

import nyala
from nyala.common import addresses
from nyala.common.errors import Unavailable
from nyala.env.monotonic import monotonic_us
from nyala.testing import MiniCluster, layout
from tests.waiting import later

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]

DELAY_S = 3.0
"""Time that a connection waits before its first byte is passed on, longer than one try of a client."""


@pytest.fixture(scope="module")
def cluster():
    with MiniCluster(1, 1, secure=True) as made:
        yield made


class SlowDoor:
    """A port that accepts connections at once, and passes their bytes to a server after a delay.

    Args:
        address: of the server.
        delay_s: delay of each connection, in seconds; negative: its bytes are never passed on.
    """

    def __init__(self, address: str, delay_s: float) -> None:
        self._address, self._delay_s = addresses.parse(address), delay_s
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self._ended = threading.Event()
        self._open: list[socket.socket] = []
        self.address = addresses.join(*self._listener.getsockname())
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near = self._listener.accept()[0]
                self._open.append(near)
                threading.Thread(target=self._serve, args=(near,), daemon=True).start()

    def _serve(self, near: socket.socket) -> None:
        if self._ended.wait(None if self._delay_s < 0 else self._delay_s):
            return
        with contextlib.suppress(OSError):
            far = socket.create_connection(self._address)
            self._open.append(far)
            threading.Thread(target=_copy, args=(far, near), daemon=True).start()
            _copy(near, far)

    def close(self) -> None:
        """Close the port and its connections."""
        self._ended.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._accepting.join()  # else a connection that it has just accepted would stay open
        for one in (self._listener, *self._open):
            one.close()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while piece := source.recv(1 << 16):
            target.sendall(piece)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def slow_door(cluster: MiniCluster, delay_s: float) -> Iterator[str]:
    door = SlowDoor(cluster.address("master-0"), delay_s)
    try:
        yield door.address
    finally:
        door.close()


def test_client_connects_although_each_handshake_takes_three_seconds(cluster):
    made = layout.load(cluster.dir)
    assert made is not None
    files = made.client_files
    assert files is not None
    with slow_door(cluster, DELAY_S) as address:
        began_us = monotonic_us()
        with nyala.connect(address, ca=files.ca, cert=files.cert, key=files.key) as client:
            assert monotonic_us() - began_us > DELAY_S * 1e6
            assert client.tables() == []


def test_master_that_accepts_and_stays_silent_is_awaited_until_the_deadline(cluster):
    with slow_door(cluster, -1) as address:
        began_us = monotonic_us()
        with pytest.raises(Unavailable, match=f"no nyala master answers .{address}: no response"):
            nyala.connect(address, timeout_ms=5_000)
        assert 4.5 <= (monotonic_us() - began_us) / 1e6 <= later(7)
