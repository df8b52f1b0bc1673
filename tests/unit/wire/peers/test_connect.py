"""Connections to hosts with several addresses: silent ones, refused ones, families that the machine lacks."""

import asyncio
import contextlib
import gc
import socket
import threading
import time
import warnings

import pytest
import uvloop

from nyala.wire import connection
from tests.cluster.support.loops import one_turn
from tests.waiting import later

TCP = (socket.SOCK_STREAM, socket.IPPROTO_TCP)
SILENT, GOOD, REFUSED = "127.0.0.1", "127.0.0.2", "127.0.0.3"
HOST = "host.invalid"
NO_FAMILY = 4_000
"""Number of an address family that no machine has."""


@pytest.fixture
def hosts(monkeypatch):
    """Returns a context of a port that is silent at one address and accepts at another one.

    A port whose queue of connections is full answers nothing (Linux).
    """

    @contextlib.contextmanager
    def opened():
        with contextlib.ExitStack() as stack:
            full = stack.enter_context(socket.create_server((SILENT, 0), backlog=0))
            for _ in range(4):
                filler = stack.enter_context(socket.socket())
                filler.setblocking(False)
                filler.connect_ex(full.getsockname())
            port = full.getsockname()[1]
            stack.enter_context(socket.create_server((GOOD, port)))
            yield port

    return opened


def resolving(monkeypatch, *found):
    """Let the running loop find these (family, address) of the host; uvloop resolves addresses, too."""
    real = asyncio.get_running_loop().getaddrinfo

    async def resolve(host, port, **more):
        if host != HOST:
            return await real(host, port, **more)
        return [(family, *TCP, "", (address, port)) for family, address in found]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve)


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize(
    "first",
    [(socket.AF_INET, SILENT), (socket.AF_INET, REFUSED), (NO_FAMILY, SILENT)],
    ids=["silent", "refused", "no such family"],
)
def test_next_address_is_tried_when_one_cannot_be_reached(hosts, monkeypatch, run, first):
    async def scenario():
        with hosts() as port:
            resolving(monkeypatch, first, (socket.AF_INET, GOOD))
            began = time.monotonic()
            with await connection.connect(HOST, port, 20_000) as made:
                assert made.getpeername()[0] == GOOD
            assert time.monotonic() - began < later(5)

    run(scenario())


def test_every_address_is_tried_within_the_timeout(hosts, monkeypatch):
    async def scenario():
        with hosts() as port:
            silent = [(socket.AF_INET, SILENT)] * 8
            resolving(monkeypatch, *silent, (socket.AF_INET, GOOD))
            with await connection.connect(HOST, port, 1_000) as made:
                assert made.getpeername()[0] == GOOD

    uvloop.run(scenario())


def test_connections_that_were_too_slow_or_failed_are_closed(hosts, monkeypatch):
    async def scenario():
        with hosts() as port:
            resolving(monkeypatch, (socket.AF_INET, SILENT), (socket.AF_INET, SILENT))
            with pytest.raises(TimeoutError, match=f"{HOST}:{port} accepted no connection"):
                await connection.connect(HOST, port, 100)
            resolving(monkeypatch, (socket.AF_INET, REFUSED))
            with pytest.raises(ConnectionRefusedError):
                await connection.connect(HOST, port, 1_000)
            resolving(monkeypatch)
            with pytest.raises(OSError, match="has no address"):
                await connection.connect(HOST, port, 1_000)

    with warnings.catch_warnings():
        warnings.simplefilter("error", ResourceWarning)
        uvloop.run(scenario())
        gc.collect()


def test_address_is_connected_to_although_all_threads_of_the_loop_are_busy():
    done = threading.Event()

    async def scenario(port):
        loop = asyncio.get_running_loop()
        busy = [loop.run_in_executor(None, done.wait) for _ in range(64)]
        try:
            (await connection.connect(GOOD, port, 5_000)).close()
        finally:
            done.set()
        await asyncio.gather(*busy)

    with socket.create_server((GOOD, 0)) as server:
        asyncio.run(scenario(server.getsockname()[1]))


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_connect_that_is_cancelled_at_any_turn_leaves_no_socket_open(run):
    async def scenario(port):
        for turns in range(12):
            made = asyncio.ensure_future(connection.connect(GOOD, port, 5_000))
            for _ in range(turns):
                await one_turn()
            made.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                (await made).close()

    with socket.create_server((GOOD, 0)) as server, warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always", ResourceWarning)
        run(scenario(server.getsockname()[1]))
        gc.collect()
    assert [str(w.message) for w in seen if "unclosed" in str(w.message)] == []
