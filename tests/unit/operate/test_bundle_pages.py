"""Pages of servers for a bundle: errors, foreign answers, and answers without an end."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from nyala.operate.diagnose.collect import read_page

pytestmark = pytest.mark.row("A13")


@contextmanager
def server(answer: bytes) -> Iterator[str]:
    """Yield the address of a server that sends these bytes to each request, and then closes."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    peer, _ = listener.accept()
                except OSError:
                    return
                with peer:
                    peer.recv(1 << 16)
                    peer.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
    thread.join()


FORBIDDEN = (
    b"HTTP/1.1 403 Forbidden\r\nContent-Type: text/plain\r\nContent-Length: 9\r\n\r\nno reader"
)
LOGIN = b"HTTP/1.1 401 Unauthorized\r\nContent-Type: text/html\r\n\r\n<html>log in"
STARTING = b"HTTP/1.1 503 Unavailable\r\nContent-Length: 8\r\n\r\nstarting"


def test_json_that_is_refused_is_missing_with_the_reason():
    with server(FORBIDDEN) as address, pytest.raises(OSError, match="status 403: no reader"):
        read_page(address, "/log?format=json", None)


@pytest.mark.parametrize("path", ["/metrics", "/log?format=json"])
def test_page_that_asks_for_a_login_is_missing(path):
    with server(LOGIN) as address, pytest.raises(OSError, match=r"^status 401: Unauthorized$"):
        read_page(address, path, None)


def test_text_with_the_reason_for_an_error_status_is_kept():
    with server(STARTING) as address:
        assert read_page(address, "/healthz", None) == b"starting"


@pytest.mark.parametrize(
    "answer",
    [b"no web server\r\n\r\n", b"", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"],
    ids=["other protocol", "nothing", "bad chunk"],
)
def test_answer_of_another_server_is_an_error_of_the_page_only(answer):
    with server(answer) as address, pytest.raises(OSError, match=r"."):
        read_page(address, "/metrics", None)
    with pytest.raises(OSError, match="not of a web server"):
        read_page("no port:x", "/metrics", None)


def test_answer_that_is_too_large_is_refused():
    large = b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * (33 << 20)
    with server(large) as address, pytest.raises(OSError, match="more than 33554432 bytes"):
        read_page(address, "/metrics", None)
