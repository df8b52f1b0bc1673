"""Logins at the web port by account and password: the form, its token, and what ends the session."""

import asyncio
import re
from urllib.parse import urlencode

import uvloop

from nyala.common.errors import Throttled, Unauthenticated
from nyala.security.identity import PeerIdentity
from nyala.security.principal import AccessRole, Principal
from nyala.security.revocation import Revocation, id_of_user
from tests.unit.security.certificates import server
from tests.unit.web.secured import ask, secured

PASSWORD = "correct horse battery"
LOGIN_S = 10_000


class Accounts:
    """Checks passwords, as the leader master does."""

    def __init__(self):
        self.asked, self.failure, self.role = [], None, AccessRole.READER

    async def check(self, name, password, host):
        self.asked.append((name, host))
        if self.failure is not None:
            raise self.failure
        if password != PASSWORD:
            raise Unauthenticated(f"the user {name!r} is unknown, or the password is wrong")
        return PeerIdentity(Principal("0" * 32, self.role, name), 0, LOGIN_S - 300, 1 << 40)


def at(scenario):
    """Run a blocking scenario beside a web port, in a thread."""
    accounts, credentials = Accounts(), server()

    async def run():
        async with secured(credentials, accounts.check) as address:
            await asyncio.to_thread(scenario, address, accounts, credentials)

    uvloop.run(run())


def form(address: str) -> tuple[str, str]:
    """Return the cookie and the token of a new form."""
    page = ask(address, "/login")
    assert page.status == 200
    (token,) = re.findall(r'name="form" value="([^"]+)"', page.body)
    return page.headers["set-cookie"], token


def send(address, cookie, token, password=PASSWORD, user="ann", **headers):
    body = urlencode({"user": user, "password": password, "form": token})
    known = {"cookie": cookie.partition(";")[0], **headers}
    return ask(address, "/login", "POST", body=body, headers=known)


def test_user_logs_in_with_a_password_and_a_change_of_the_account_ends_the_session():
    def scenario(address, accounts, credentials):
        assert 'href="/login"' in ask(address, "/").body
        begun = send(address, *form(address))
        assert (begun.status, begun.headers["location"]) == (303, "/")
        cookie = begun.headers["set-cookie"]
        for attribute in ("HttpOnly", "Secure", "SameSite=strict", "Path=/"):
            assert attribute in cookie
        assert accounts.asked == [("ann", "127.0.0.1")]
        session = {"cookie": cookie.partition(";")[0]}
        assert ask(address, "/", headers=session).status == 200
        before = Revocation(id_of_user("ann"), (LOGIN_S - 1) * 1_000_000)
        credentials.revocations.replace([before])
        assert ask(address, "/", headers=session).status == 200
        changed = Revocation(id_of_user("ann"), LOGIN_S * 1_000_000)
        credentials.revocations.replace([changed])
        assert ask(address, "/", headers=session).status == 401

    at(scenario)


def test_form_of_another_page_or_site_does_not_reach_the_masters():
    def scenario(address, accounts, credentials):
        cookie, token = form(address)
        other = form(address)[1]
        for refused in (
            send(address, "", token),
            send(address, cookie, other),
            send(address, cookie, ""),
            send(address, cookie, token, origin="https://elsewhere.example"),
            send(address, cookie, token, host="elsewhere.example"),
        ):
            assert refused.status in (400, 403)
            assert "__Host-nyala-0" not in refused.headers.get("set-cookie", "")
        assert accounts.asked == []
        cookie_of_form = cookie.partition("=")[0]
        assert cookie_of_form.startswith("__Host-nyala-form-")
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie

    at(scenario)


def test_refusals_are_shown_in_a_new_form_and_begin_no_session(caplog):
    def scenario(address, accounts, credentials):
        def begins(answer):
            return "__Host-nyala-form-" not in answer.headers["set-cookie"]

        cookie, token = form(address)
        wrong = send(address, cookie, token, "staple <b>")
        assert (wrong.status, begins(wrong)) == (403, False)
        assert "password is wrong" in wrong.body
        accounts.failure = Throttled("wait <b>20 s</b>")
        busy = send(address, *form(address))
        assert (busy.status, begins(busy)) == (503, False)
        assert "wait &lt;b&gt;20 s" in busy.body
        accounts.failure, accounts.role = None, AccessRole.USER
        below = send(address, *form(address))
        assert (below.status, begins(below)) == (403, False)
        assert "role reader" in below.body

    with caplog.at_level("DEBUG"):
        at(scenario)
    assert "staple" not in caplog.text
    assert PASSWORD not in caplog.text


def test_server_without_accounts_has_the_form_of_links_only():
    async def scenario():
        async with secured() as address:
            page = await asyncio.to_thread(ask, address, "/login")
            assert "password" not in page.body
            sent = await asyncio.to_thread(send, address, "a=b", "x")
            assert sent.status == 403

    uvloop.run(scenario())
