"""Access to the pages of a web port: the Host header, certificates, logins of browsers.

Every page needs a caller: the holder of a client certificate (programs), or the user of a session (browsers).
A program with a certificate asks for a link (POST /login-links); the page behind the link has a button, which
begins the session (POST /login). A user with an account begins one by a form with the password, which the
leader master checks. No GET has an effect, so that a preview of a link does not use it up. The secret of the
link, or a random value that the form and a cookie have in common, keeps other sites from sending the form.
"""

import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping
from html import escape
from typing import Protocol
from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response

from nyala.common import addresses
from nyala.common.errors import NyalaError, Retryable
from nyala.security.credentials import Credentials
from nyala.security.identity import PeerIdentity
from nyala.security.principal import AccessRole
from nyala.web.logins import SESSION_S, Logins
from nyala.web.pages import message
from nyala.wire.tls.bounded_lines import BoundedLines

log = logging.getLogger(__name__)
log.addFilter(BoundedLines())

FORM_S = 600
"""Time, in seconds, within which the form for a password has to be sent."""
_PASSWORD_FORM = """\
<p class="unhealthy">{}</p>
<form method="post" action="/login"><input type="hidden" name="form" value="{}">
<p><label>User <input name="user" autocomplete="username" maxlength="64" required></label></p>
<p><label>Password
<input name="password" type="password" autocomplete="current-password" required></label></p>
<p><button>Log in</button></p></form>
"""
BODY_BYTES = 4096
"""Largest body of a request."""
AGAIN = "print a new link with: nyala web"
CheckPassword = Callable[[str, str, str], Awaitable[PeerIdentity]]
"""Check of name, password and host of a user, which returns who it is. Raises a NyalaError."""


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
        port: of the server, which distinguishes its cookies from those of others on the same host.
        check: checks passwords; None: users log in by links only.
    """

    def __init__(
        self, credentials: Credentials, port: int, check: CheckPassword | None = None
    ) -> None:
        self._credentials = credentials
        self._check = check
        self._form_cookie = f"__Host-nyala-form-{port}"
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
        account = (
            "" if self._check is None else '<p><a href="/login">Log in with a password</a></p>'
        )
        return HTMLResponse(message("log in", f"<p>{escape(text)}</p>{account}"), 401)

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
        """Return the page of a link, or without one the form for a password."""
        wrong = self._wrong_host(request)
        if wrong is not None:
            return wrong
        link = request.query_params.get("token", "")
        return self._password_form() if not link and self._check is not None else _link_form(link)

    async def log_in(self, request: Request) -> Response:
        """Begin a session with the secret of a link, or a password; the answer has its cookie."""
        wrong = self._wrong_host(request) or _wrong_origin(request)
        if wrong is not None:
            return wrong
        body = await _body(request)
        if body is None:
            return PlainTextResponse(f"the request is larger than {BODY_BYTES} bytes\n", 413)
        fields = {name: values[0] for name, values in parse_qs(body).items()}
        if "user" in fields and self._check is not None:
            return await self._log_in_by_password(request, fields, self._check)
        begun = self._logins.begin(fields.get("token", ""))
        if begun is None:
            text = f"This link is unknown, was used, or is too old; {AGAIN}."
            return HTMLResponse(message("log in", escape(text)), 403)
        return self._begun(*begun)

    async def _log_in_by_password(
        self, request: Request, fields: Mapping[str, str], check: CheckPassword
    ) -> Response:
        expected = request.cookies.get(self._form_cookie, "")
        sent = fields.get("form", "")
        if not expected or not secrets.compare_digest(expected.encode(), sent.encode()):
            return self._password_form(
                "The form is not from this page, or too old; try again.", 403
            )
        host = request.client.host if request.client else ""
        try:
            user = await check(fields["user"], fields.get("password", ""), host)
        except Retryable as err:
            return self._password_form(err.message, 503)
        except NyalaError as err:
            log.info("web: user %r did not log in: %s", fields["user"][:64], err.code)
            return self._password_form(err.message, 403)
        if self._valid(user) is None:
            text = "These pages are for users with the role reader of the cluster, or one above."
            return self._password_form(text, 403)
        return self._begun(self._logins.session(user), user)

    def _password_form(self, problem: str = "", status: int = 200) -> Response:
        """Return the form for name and password, with a new value that its cookie has too."""
        value = secrets.token_urlsafe(32)
        answer = HTMLResponse(
            message("log in", _PASSWORD_FORM.format(escape(problem), value)), status
        )
        self._set_cookie(answer, self._form_cookie, value, FORM_S)
        return answer

    def _begun(self, session: str, user: PeerIdentity) -> Response:
        log.info("web: login of %s", user.principal)
        answer = RedirectResponse("/", 303)
        self._set_cookie(answer, self.cookie, session, SESSION_S)
        return answer

    def _set_cookie(self, answer: Response, name: str, value: str, seconds: int) -> None:
        answer.set_cookie(
            name, value, max_age=seconds, path="/", secure=True, httponly=True, samesite="strict"
        )

    def _caller(self, request: Request) -> PeerIdentity | None:
        session = self._logins.user(request.cookies.get(self.cookie, ""))
        return self._valid(request.state.certified) or self._valid(session)

    def _valid(self, caller: PeerIdentity | None) -> PeerIdentity | None:
        """Return a caller who may see the pages: a reader of the cluster, with a valid certificate."""
        if caller is None or caller.principal.role < AccessRole.READER:
            return None
        try:
            self._credentials.check(caller)
            self._credentials.check_authority(caller)
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


def _link_form(link: str) -> Response:
    """Return the page of a link: a button that begins the session."""
    body = (
        '<form method="post" action="/login">'
        f'<input type="hidden" name="token" value="{escape(link, quote=True)}">'
        "<button>Log in</button></form>\n"
    )
    return HTMLResponse(message("log in", body))


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
