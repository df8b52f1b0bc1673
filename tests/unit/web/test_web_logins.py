"""Logins at the web port with encryption: who sees its pages, links, sessions, requests of other sites."""

import asyncio
import contextlib
import logging
import re
import ssl
from dataclasses import replace

import pytest
import uvloop

from nyala.common import addresses
from nyala.security.identity import PeerIdentity
from nyala.security.principal import AccessRole, Principal
from nyala.security.revocation import Revocation, id_of_name
from nyala.web import connection
from nyala.web import server as web_server
from nyala.web.logins import LINK_S, LINKS, SESSION_S, SESSIONS, SESSIONS_OF_USER, Logins
from tests.unit.security.certificates import server, user_files
from tests.unit.web.secured import Answer, ask, context, secured
from tests.waiting import later

PAGES = ("/", "/healthz", "/metrics", "/?token=x")
ANN = PeerIdentity(Principal("0" * 32, AccessRole.READER, "ann"), 1, 0, 1)


def reader():
    return user_files(AccessRole.READER)


def at(scenario):
    """Run a blocking scenario beside a web port, in a thread; return its result."""

    async def run():
        async with secured() as address:
            return await asyncio.to_thread(scenario, address)

    return uvloop.run(run())


def link_of(address):
    answer = ask(address, "/login-links", "POST", files=reader())
    assert answer.status == 200
    return answer.body


def log_in(address, link, **headers) -> Answer:
    return ask(address, "/login", "POST", body=f"token={link}", headers=headers)


def cookie_of(answer):
    return answer.headers["set-cookie"].partition(";")[0]


def test_pages_need_a_certificate_or_a_login():
    def scenario(address):
        for path in PAGES:
            assert ask(address, path, files=reader()).status == 200
            refused = ask(address, path)
            assert refused.status == 401
            assert "nyala web" in refused.body
            assert ask(address, path, headers={"Cookie": "__Host-nyala-1=x"}).status == 401
        assert ask(address, "/style.css").status == 200
        with pytest.raises((OSError, ssl.SSLError)):
            ask(address, "/", files=user_files(AccessRole.ADMIN, "other"))

    at(scenario)


def test_revoked_user_has_no_pages_neither_by_certificate_nor_in_a_session_that_began_before():
    credentials = server()

    def before(address):
        return cookie_of(log_in(address, link_of(address)))

    def after(address, cookie):
        refused = ask(address, "/", files=reader()), ask(address, "/", headers={"Cookie": cookie})
        return [answer.status for answer in refused]

    async def run():
        async with secured(credentials) as address:
            cookie = await asyncio.to_thread(before, address)
            assert await asyncio.to_thread(after, address, cookie) == [200, 200]
            credentials.revocations.replace([Revocation(id_of_name("reader"), 1 << 62)])
            assert await asyncio.to_thread(after, address, cookie) == [401, 401]

    uvloop.run(run())


def test_link_is_for_one_login_which_opens_all_pages_of_the_server():
    def scenario(address):
        link = link_of(address)
        for _ in range(2):  # a preview of the link does not use it up
            form = ask(address, f"/login?token={link}")
            assert form.status == 200
            assert f'value="{link}"' in form.body
        answer = log_in(address, link, Origin=f"https://{address}")
        assert (answer.status, answer.headers["location"]) == (303, "/")
        for path in PAGES:
            assert ask(address, path, headers={"Cookie": cookie_of(answer)}).status == 200
        again = log_in(address, link)
        assert again.status == 403
        assert "set-cookie" not in again.headers
        assert "nyala web" in again.body

    at(scenario)


def test_cookie_is_kept_from_scripts_other_sites_and_plain_http():
    """Abuse case 22: missing SameSite."""

    def scenario(address):
        answer = log_in(address, link_of(address))
        name, *attributes = answer.headers["set-cookie"].split("; ")
        assert name.startswith(f"__Host-nyala-{addresses.parse(address)[1]}=")
        assert {a.lower() for a in attributes} == {
            "httponly", "secure", "samesite=strict", "path=/", f"max-age={SESSION_S}",
        }  # fmt: skip

    at(scenario)


def test_requests_of_other_sites_and_for_other_hosts_are_refused():
    """Abuse case 22: CSRF, Host header spoof, open redirect."""

    def scenario(address):
        link, own = link_of(address), f"https://{address}"
        for origin in ("https://evil.example", "null", f"http://{address}", own + ".evil.example"):
            assert log_in(address, link, Origin=origin).status == 403, origin
        for host in ("evil.example", "evil.example:8051", "", "127.0.0.1.evil.example", "a b"):
            for path, method in (("/", "GET"), ("/login", "GET"), ("/login", "POST")):
                answer = ask(address, path, method, files=reader(), headers={"Host": host})
                assert answer.status == 400, (host, path)
        forged = {"Origin": "https://evil.example"}
        assert ask(address, "/login-links", "POST", files=reader(), headers=forged).status == 403
        assert log_in(address, f"{link}&next=https://evil.example").headers["location"] == "/"
        assert ask(address, "/", files=reader(), headers={"Host": "LOCALHOST"}).status == 200

    at(scenario)


def test_pages_cannot_be_framed_and_send_nothing_elsewhere():
    """Abuse case 22: clickjacking; 21: what a token of a link contains is escaped."""

    def scenario(address):
        hostile = "%22%3E%3Cscript%3Ealert(1)%3C/script%3E"
        for path in ("/", "/login?token=" + hostile, "/login", "/nowhere"):
            answer = ask(address, path, files=reader())
            if path != "/nowhere":
                policy = answer.headers["content-security-policy"]
                for rule in ("default-src 'self'", "frame-ancestors 'none'", "form-action 'self'"):
                    assert rule in policy
                assert answer.headers["referrer-policy"] == "same-origin"
                assert answer.headers["cache-control"] == "no-store"
            assert "<script" not in answer.body

    at(scenario)


def test_only_posts_with_their_secret_have_an_effect():
    def scenario(address):
        assert ask(address, "/login-links", files=reader()).status == 405
        assert ask(address, "/login-links", "POST").status == 403
        cookie = {"Cookie": cookie_of(log_in(address, link_of(address)))}
        assert ask(address, "/login-links", "POST", headers=cookie).status == 403
        for path in ("/", "/metrics", "/healthz"):
            assert ask(address, path, "POST", files=reader()).status == 405
        for body in ("", "token=", "token=x", "x", "token=%00", "token=é"):
            assert ask(address, "/login", "POST", body=body.encode()).status == 403

    at(scenario)


def test_large_requests_are_refused():
    """Abuse case 13, for the web port."""

    def scenario(address):
        assert ask(address, "/login", "POST", body="token=" + "x" * 5_000).status == 413
        headers = {f"x-{n}": "y" * 1000 for n in range(400)}
        assert ask(address, "/", files=reader(), headers=headers).status == 400
        assert ask(address, "/", files=reader()).status == 200

    at(scenario)


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ", b"half a body"])
def test_slow_client_is_disconnected(monkeypatch, sent):
    """Abuse case 17: a connection without a request, with a part of one, with a part of its body."""
    if sent == b"half a body":
        sent = b"POST /login HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\ntoken="
    monkeypatch.setattr(connection.WebConnection, "_request_s", 0.2)

    async def scenario():
        async with secured() as address:
            host, port = addresses.parse(address)
            reading, writing = await asyncio.open_connection(host, port, ssl=context())
            writing.write(sent)
            with contextlib.suppress(ConnectionError):
                assert await asyncio.wait_for(reading.read(), later(10)) == b""
            writing.close()
            assert (await asyncio.to_thread(ask, address, "/", files=reader())).status == 200

    asyncio.run(scenario())


def test_client_that_begins_no_handshake_is_disconnected(monkeypatch):
    """Abuse case 17: TCP without TLS."""
    monkeypatch.setattr(web_server, "HANDSHAKE_S", 0.2)

    async def scenario():
        async with secured() as address:
            reading, writing = await asyncio.open_connection(*addresses.parse(address))
            writing.write(b"\x16\x03\x01")  # the first bytes of a record
            with contextlib.suppress(ConnectionError):
                assert await asyncio.wait_for(reading.read(), later(10)) == b""
            writing.close()

    asyncio.run(scenario())


def test_secrets_are_in_no_log_and_no_page(caplog):
    """Abuse case 23."""
    caplog.set_level(logging.DEBUG)

    def scenario(address):
        link = link_of(address)
        answer = log_in(address, link)
        cookie = cookie_of(answer)
        pages = [ask(address, path, headers={"Cookie": cookie}).body for path in PAGES]
        return [link, cookie.partition("=")[2]], pages

    hidden, pages = at(scenario)
    assert "login of reader reader" in caplog.text
    for secret in hidden:
        assert secret not in caplog.text
        assert not any(secret in page for page in pages)
    assert not re.search("PRIVATE KEY", caplog.text + "".join(pages))


def begun(logins: Logins) -> tuple[str, PeerIdentity]:
    """Begin a session."""
    made = logins.begin(logins.link(ANN))
    assert made is not None
    return made


def test_links_and_sessions_end_and_are_bounded():
    now = [0.0]
    logins = Logins(lambda: now[0])
    link = logins.link(ANN)
    now[0] = LINK_S
    assert logins.begin(link) is None
    session, who = begun(logins)
    assert (who, logins.user(session), logins.user(session + "x")) == (ANN, ANN, None)
    now[0] += SESSION_S - 1
    assert logins.user(session) == ANN
    now[0] += 1
    assert logins.user(session) is None
    first = logins.link(ANN)
    for _ in range(LINKS):
        logins.link(ANN)
    assert logins.begin(first) is None
    oldest, _ = begun(logins)
    for _ in range(SESSIONS):
        assert logins.begin(logins.link(ANN)) is not None
    assert logins.user(oldest) is None


def test_user_who_logs_in_often_ends_no_session_of_others():
    logins = Logins(lambda: 0.0)
    users = [replace(ANN, principal=replace(ANN.principal, name=f"u{n}")) for n in range(SESSIONS)]
    links, sessions = [logins.link(u) for u in users[:3]], [logins.session(u) for u in users[:3]]
    for _ in range(2 * SESSIONS):
        logins.link(ANN)
        mine = logins.session(ANN)
    assert [logins.user(s) for s in sessions] == users[:3]
    assert all(logins.begin(link) for link in links)
    own = [logins.session(ANN) for _ in range(SESSIONS_OF_USER)]
    assert logins.user(mine) is None
    sessions += [logins.session(u) for u in users[11:]]  # with those of the links: no room for all
    assert all(logins.user(s) for s in sessions)
    assert not logins.user(own[0]), "the user who has most loses the oldest"
    assert logins.user(own[-1]) == ANN


def test_only_the_web_port_takes_clients_without_certificate():
    credentials = server()
    assert credentials.server_context().verify_mode is ssl.CERT_REQUIRED
    assert credentials.client_context().verify_mode is ssl.CERT_REQUIRED
    assert credentials.web_context().verify_mode is ssl.CERT_OPTIONAL
    for made in (credentials.server_context(), credentials.web_context()):
        assert made.minimum_version is ssl.TLSVersion.TLSv1_3
