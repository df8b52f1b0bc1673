"""A web port with encryption, and requests to it with or without a certificate and a cookie."""

import contextlib
import http.client
import ssl
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry

from nyala.common import addresses
from nyala.security.credentials import Credentials
from nyala.security.files import CredentialFiles
from nyala.web.access import CheckPassword
from nyala.web.server import Facts, WebServer
from tests.unit.security.certificates import server, server_files

FACTS = Facts("nyala", lambda: None, dict, dict, CollectorRegistry())


@dataclass(frozen=True)
class Answer:
    """Answer of a web port."""

    status: int
    headers: Mapping[str, str]
    body: str


@contextlib.asynccontextmanager
async def secured(
    credentials: Credentials | None = None, check: CheckPassword | None = None
) -> AsyncIterator[str]:
    """Serve pages with the certificate of a server; yield the address."""
    web = WebServer(FACTS, "127.0.0.1:0", credentials or server(), check)
    address = await web.start()
    try:
        yield address
    finally:
        await web.stop()


def context(files: CredentialFiles | None = None) -> ssl.SSLContext:
    """Return the TLS context of a client with or without a certificate."""
    made = ssl.create_default_context(cafile=server_files().ca)
    if files is not None:
        made.load_cert_chain(files.cert, files.key)
    return made


def ask(
    address: str, path: str, method: str = "GET", *, files: CredentialFiles | None = None,
    headers: Mapping[str, str] | None = None, body: str | bytes | None = None,
) -> Answer:  # fmt: skip
    """Send a request; blocks.

    Args:
        address: of the web port.
        path: with its query.
        method: of HTTP.
        files: certificate of the client; None: none, as of a browser.
        headers: of the request.
        body: of the request.
    """
    host, port = addresses.parse(address)
    link = http.client.HTTPSConnection(host, port, context=context(files), timeout=30)
    try:
        link.request(method, path, body, dict(headers or {}))
        got = link.getresponse()
        return Answer(got.status, dict(got.headers), got.read().decode())
    finally:
        link.close()
