"""The web port of a process: status pages, `/healthz` and `/metrics`, on the event loop of the process.

Read-only, except that logins begin (`web/access.py`). Without TLS it listens on loopback only.
"""

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Generator, Mapping
from dataclasses import dataclass, field
from email.utils import formatdate
from typing import TypeVar

import uvicorn
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from nyala.common import addresses
from nyala.common.errors import InvalidArgument, NyalaError
from nyala.security.credentials import Credentials
from nyala.web.access import CheckPassword, LoginGuard, LoopbackGuard, WebGuard
from nyala.web.connection import WebConnection
from nyala.web.pages import STYLE, Listing, listing, overview, refusal

HANDSHAKE_S = 5.0
"""Time, in seconds, for the TLS handshake of an accepted connection."""
Page = Callable[[Request], Awaitable[Response]]
T = TypeVar("T")

_SECURITY = {
    "content-security-policy": (
        "default-src 'self'; frame-ancestors 'none'; form-action 'self'; base-uri 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cache-control": "no-store",
}


@dataclass(frozen=True, slots=True)
class Facts:
    """Status of a process for its pages, computed for each request.

    Attributes:
        title: title of the page: "nyala tserver 7050".
        unavailable_reason: returns the reason that `/healthz` sends with status 503; None while the process
            serves.
        values: by name, in order.
        links: URL by text, to other pages and servers.
        registry: exposed by `/metrics`.
        listings: further pages by path.
        documents: JSON by path, for other programs; raises as a listing.
        leader: returns the web address of the server that has the listings which raise; empty: none is known.
    """

    title: str
    unavailable_reason: Callable[[], str | None]
    values: Callable[[], Mapping[str, str]]
    links: Callable[[], Mapping[str, str]]
    registry: CollectorRegistry
    listings: Mapping[str, Callable[[], Listing]] = field(default_factory=dict)
    documents: Mapping[str, Callable[[], object]] = field(default_factory=dict)
    leader: Callable[[], str] = str


def application(facts: Facts, guard: LoopbackGuard | LoginGuard) -> Starlette:
    """Return the web application of a process.

    Args:
        facts: its status.
        guard: checks its callers.
    """

    async def healthz(request: Request) -> Response:
        reason = facts.unavailable_reason()
        return PlainTextResponse(f"{reason or 'ok'}\n", 503 if reason else 200)

    async def metrics(request: Request) -> Response:
        names = request.query_params.getlist("name[]")
        chosen = facts.registry.restricted_registry(names) if names else facts.registry
        return Response(generate_latest(chosen), media_type=CONTENT_TYPE_LATEST)

    async def index(request: Request) -> Response:
        return HTMLResponse(
            overview(facts.title, facts.unavailable_reason(), facts.values(), facts.links())
        )

    async def style(request: Request) -> Response:
        return Response(STYLE, media_type="text/css")

    def of(read: Callable[[], T], show: Callable[[Request, T], Response]) -> Page:
        async def answer(request: Request) -> Response:
            try:
                return show(request, read())
            except NyalaError as err:  # not open yet, or another server has it
                return refused(request, err.message)

        return answer

    def refused(request: Request, reason: str) -> Response:
        leader, path = facts.leader(), request.url.path
        if "text/html" not in request.headers.get("accept", ""):
            return PlainTextResponse(f"{reason}\n", 503)
        elsewhere = f"{request.url.scheme}://{leader}{path}" if leader else ""
        return HTMLResponse(refusal(facts.title, path, reason, elsewhere), 503)

    def page_of(request: Request, shown: Listing) -> Response:
        if request.query_params.get("format") == "json":
            return JSONResponse(shown.as_dict())
        return HTMLResponse(listing(facts.title, shown))

    def json_of(request: Request, document: object) -> Response:
        return JSONResponse(document)

    pages = {path: of(read, page_of) for path, read in facts.listings.items()}
    pages |= {path: of(read, json_of) for path, read in facts.documents.items()}
    pages |= {"/": index, "/healthz": healthz, "/metrics": metrics}
    routes = [Route(path, _answer(page, guard)) for path, page in pages.items()]
    routes.append(Route("/style.css", _answer(style, None)))
    if isinstance(guard, LoginGuard):
        routes += [
            Route("/login", _answer(guard.form, None), methods=["GET"]),
            Route("/login", _answer(guard.log_in, None), methods=["POST"]),
            Route("/login-links", _answer(guard.new_link, None), methods=["POST"]),
        ]
    made = Starlette(routes=routes)
    # A redirection would name the Host header before the guard has checked it.
    made.router.redirect_slashes = False
    return made


def _answer(page: Page, guard: WebGuard | None) -> Page:
    """Return a page with the headers of all pages, for callers whom the guard accepts; None: for all."""

    async def answer(request: Request) -> Response:
        refusal = None if guard is None else guard.refusal(request)
        response = await page(request) if refusal is None else refusal
        response.headers.update(_SECURITY)
        response.headers["date"] = formatdate(usegmt=True)
        return response

    return answer


class WebServer:
    """Web server on the running event loop.

    Args:
        facts: returns the status of the process.
        address: host:port, loopback only unless there is TLS; port 0 picks a free one.
        credentials: of the server, for TLS; callers then need a certificate or a login. None: no encryption.
        check: checks passwords of users; None: they log in by links only.
    """

    def __init__(
        self, facts: Facts, address: str, credentials: Credentials | None = None,
        check: CheckPassword | None = None,
    ) -> None:  # fmt: skip
        self._facts = facts
        self._check = check
        self._credentials = credentials
        self.address = address
        """Listen address; with the actual port once started."""
        self._server: _Uvicorn | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> str:
        """Bind and serve; return the address.

        Raises:
            Forbidden: not a loopback address, and no TLS.
            InvalidArgument: not an address, or its port is in use.
        """
        known = self._credentials
        sock = _bind(self.address, known is not None)
        host, port = sock.getsockname()[:2]
        self.address = addresses.join(host, port)
        guard = LoopbackGuard() if known is None else LoginGuard(known, port, self._check)
        config = uvicorn.Config(
            application(self._facts, guard), lifespan="off", ws="none", log_config=None, http=WebConnection,
            access_log=False, server_header=False, date_header=False, limit_concurrency=64,
            timeout_graceful_shutdown=1,
        )  # fmt: skip
        config.load()
        config.ssl = None if known is None else known.web_context()
        self._server = _Uvicorn(config)
        self._task = asyncio.create_task(self._server.serve([sock]), name="web")
        return self.address

    async def stop(self) -> None:
        """Close the listener and its connections."""
        if self._server is not None and self._task is not None:
            self._server.stop()
            await self._task
            self._server = self._task = None


class _Uvicorn(uvicorn.Server):
    """Uvicorn without its signal handlers and its periodic wake-ups, and with a limit for TLS handshakes."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._stopped = asyncio.Event()

    def stop(self) -> None:
        """End `serve`."""
        self._stopped.set()

    async def main_loop(self) -> None:
        """Wait for `stop`."""
        await self._stopped.wait()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept connections."""
        config, loop = self.config, asyncio.get_running_loop()
        assert sockets is not None

        def made() -> WebConnection:
            return WebConnection(config, self.server_state, self.lifespan.state, loop)

        limit = None if config.ssl is None else HANDSHAKE_S
        self.servers = [
            await loop.create_server(
                made, sock=sock, ssl=config.ssl, backlog=config.backlog, ssl_handshake_timeout=limit
            )
            for sock in sockets
        ]
        self.started = True

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


def _bind(address: str, secured: bool) -> socket.socket:
    host, port = addresses.to_bind(address, secured=secured)
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
        sock.listen(128)
    except OSError as err:
        sock.close()
        raise InvalidArgument(
            f"cannot serve the web page on {address}: {err.strerror}; stop the process that uses the "
            "port, or choose another"
        ) from err
    sock.setblocking(False)
    return sock
