"""Access to the pages of a web port: the Host header, certificates, logins of browsers.

Every page needs a caller: the holder of a client certificate (programs), or the user of a session (browsers).
A program with a certificate asks for a link (POST /login-links); the page behind the link has a button, which
begins the session (POST /login). No GET has an effect, so that a preview of the link does not use it up. The
secret of the link is also what keeps other sites from sending the form.
"""

import logging
from html import escape
from typing import Protocol
from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response

from nyala.common import addresses
from nyala.common.errors import NyalaError
from nyala.security.credentials import Credentials
from nyala.security.identity import PeerIdentity
from nyala.security.principal import AccessRole
from nyala.web.logins import SESSION_S, Logins
from nyala.web.pages import message

log = logging.getLogger(__name__)

BODY_BYTES = 4096
"""Largest body of a request."""
AGAIN = "print a new link with: nyala web"


class WebGuard(Protocol):
    """Check of the requests of a web port."""

    def refusal(self, request: Request) -> Response | None:
        """Return the answer to a request that is refused; None: it is not."""
        ...


class LoopbackGuard:
    """WebGuard of a port without encryption, on loopback: everyone there may see the pages.

    The Host header has to name loopback, which prevents DNS rebinding.
    """

    def refusal(self, request: Request) -> Response | None:
        """Return the answer to a request that is refused; None: it is not."""
        if not _loopback(_host(request)):
            return PlainTextResponse("this page is served to loopback names only\n", 400)
        return None


class LoginGuard:
    """WebGuard of a port with encryption.

    Args:
        credentials: of the server. The Host header has to be a name or address in its certificate, and no
            certificate of a caller, or of the user who began a session, may be revoked.
        port: of the server, which distinguishes its cookie from those of others on the same host.
    """

    def __init__(self, credentials: Credentials, port: int) -> None:
        self._credentials = credentials
        self.cookie = f"__Host-nyala-{port}"
        """Name of the cookie; browsers accept this prefix with Secure and Path=/ only."""
        self._logins = Logins()

    def refusal(self, request: Request) -> Response | None:
        """Return the answer to a request without a caller, or for another host; None: it is good."""
        wrong = self._wrong_host(request)
        if wrong is not None or self._caller(request) is not None:
            return wrong
        text = (
            "This page is for users of the cluster. To log in, run: nyala web. It prints links, each for one "
            "login. Programs use a certificate (nyala cert user)."
        )
        return HTMLResponse(message("log in", escape(text)), 401)

    async def new_link(self, request: Request) -> Response:
        """Return the secret of a new link, to the holder of a certificate."""
        wrong = self._wrong_host(request) or _wrong_origin(request)
        certified = self._valid(request.state.certified)
        if wrong is not None:
            return wrong
        if certified is None:
            return PlainTextResponse("only with a certificate of the role reader or above\n", 403)
        return PlainTextResponse(self._logins.link(certified))

    async def form(self, request: Request) -> Response:
        """Return the page of a link: a button that begins the session."""
        wrong = self._wrong_host(request)
        if wrong is not None:
            return wrong
        link = escape(request.query_params.get("token", ""), quote=True)
        body = (
            '<form method="post" action="/login">'
            f'<input type="hidden" name="token" value="{link}"><button>Log in</button></form>\n'
        )
        return HTMLResponse(message("log in", body))

    async def log_in(self, request: Request) -> Response:
        """Begin a session with the secret of a link; the answer has its cookie."""
        wrong = self._wrong_host(request) or _wrong_origin(request)
        if wrong is not None:
            return wrong
        body = await _body(request)
        if body is None:
            return PlainTextResponse(f"the request is larger than {BODY_BYTES} bytes\n", 413)
        begun = self._logins.begin(next(iter(parse_qs(body).get("token", [])), ""))
        if begun is None:
            text = f"This link is unknown, was used, or is too old; {AGAIN}."
            return HTMLResponse(message("log in", escape(text)), 403)
        session, user = begun
        log.info("web: login of %s", user.principal)
        answer = RedirectResponse("/", 303)
        answer.set_cookie(
            self.cookie, session, max_age=SESSION_S, path="/", secure=True, httponly=True, samesite="strict"
        )  # fmt: skip
        return answer

    def _caller(self, request: Request) -> PeerIdentity | None:
        session = self._logins.user(request.cookies.get(self.cookie, ""))
        return self._valid(request.state.certified) or self._valid(session)

    def _valid(self, caller: PeerIdentity | None) -> PeerIdentity | None:
        """Return a caller who may see the pages: a reader of the cluster, with a certificate not revoked."""
        if caller is None or caller.principal.role < AccessRole.READER:
            return None
        try:
            self._credentials.revocations.check(caller)
        except NyalaError:
            return None
        return caller

    def _wrong_host(self, request: Request) -> Response | None:
        host = _host(request)
        if host in self._credentials.hosts:
            return None
        return PlainTextResponse(
            "the Host header is no name in this server's certificate; use one (nyala cert show)\n",
            400,
        )


def _wrong_origin(request: Request) -> Response | None:
    """Return the answer to a request of another site; None: of this one, or not of a browser."""
    origin = request.headers.get("origin")
    if origin is None or origin == f"https://{request.headers.get('host', '')}":
        return None
    return PlainTextResponse("a request of another site is refused\n", 403)


async def _body(request: Request) -> str | None:
    """Return the body of a request; None: it is too large."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > BODY_BYTES:
            return None
    return body.decode(errors="replace")


def _host(request: Request) -> str:
    """Return the host that the Host header names, without its port; empty: it is not an address."""
    given = request.headers.get("host", "")
    with_port = given if ":" in given.rpartition("]")[2] else f"{given}:80"
    try:
        return addresses.parse(with_port)[0].lower()
    except NyalaError:
        return ""


def _loopback(host: str) -> bool:
    try:
        addresses.require_loopback(addresses.join(host, 80))
    except NyalaError:
        return False
    return True
