"""Hostile requests to every route of the web port: no error of the server, no page for strangers."""

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from nyala.web.access import LoginGuard, LoopbackGuard
from nyala.web.pages import Listing
from nyala.web.server import Facts, application
from tests.unit.security.certificates import server

FACTS = Facts(
    "nyala <tserver>", lambda: None, lambda: {"a": "<b>"}, lambda: {"x": "javascript:alert(1)"},
    CollectorRegistry(), {"/tables": lambda: Listing("tables", ["name"], [["<script>"]])},
)  # fmt: skip
APPLICATIONS = {
    "login": application(FACTS, LoginGuard(server(), 8051)),
    "loopback": application(FACTS, LoopbackGuard()),
}
ROUTES = sorted({route.path for app in APPLICATIONS.values() for route in app.routes})  # type: ignore[attr-defined]
OPEN = {"/style.css", "/login", "/login-links"}
"""Paths that answer callers without a login."""

RUNNER = asyncio.Runner()
VISIBLE = st.characters(min_codepoint=0x21, max_codepoint=0x7E)
"""Characters that h11 accepts in a request's target."""

tokens = st.binary(max_size=40)
queries = st.text(VISIBLE, max_size=40).map(str.encode)
headers = st.lists(
    st.tuples(
        st.sampled_from([b"host", b"cookie", b"origin", b"content-type", b"content-length", b"x-a"]),
        st.one_of(
            tokens,
            st.sampled_from([b"127.0.0.1:8051", b"evil.example", b"__Host-nyala-8051=x", b"[::1", b"-1"]),
        ),
    ),
    max_size=6,
)  # fmt: skip
requests = st.fixed_dictionaries(
    {
        "method": st.sampled_from(["GET", "POST", "HEAD", "PUT", "DELETE", "OPTIONS", "TRACE", "\x00"]),
        "path": st.one_of(
            st.sampled_from(ROUTES),
            st.builds(lambda route, more: route + more, st.sampled_from(ROUTES), st.text(max_size=9)),
            st.text(max_size=20),
        ),
        "query": st.one_of(queries, queries.map(lambda raw: b"token=" + raw)),
        "headers": headers,
        "body": st.one_of(tokens, tokens.map(lambda raw: b"token=" + raw), st.just(b"x" * 9000)),
    }
)  # fmt: skip


async def answer_to(app: Any, request: dict[str, Any]) -> tuple[int, dict[bytes, bytes]]:
    """Return status and headers of an application's answer."""
    scope = {
        "type": "http", "http_version": "1.1", "method": request["method"], "path": request["path"],
        "raw_path": request["path"].encode("utf-8", "replace"), "query_string": request["query"],
        "headers": request["headers"], "scheme": "https", "server": ("127.0.0.1", 8051),
        "client": ("127.0.0.1", 4), "root_path": "", "state": {"certified": None},
    }  # fmt: skip
    sent: list[dict[str, Any]] = []
    parts = [{"type": "http.request", "body": request["body"], "more_body": False}]

    async def receive() -> Any:
        return parts.pop() if parts else {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    return sent[0]["status"], dict(sent[0]["headers"])


@pytest.mark.parametrize("guard", sorted(APPLICATIONS))
@settings(max_examples=80)
@given(request=requests)
def test_every_request_is_answered_without_an_error_and_strangers_see_no_page(guard, request):
    status, found = RUNNER.run(answer_to(APPLICATIONS[guard], request))
    assert status < 500
    if guard == "login" and request["path"] not in OPEN:
        assert status in (400, 401, 404, 405)
    if status not in (404, 405):
        assert b"default-src 'self'" in found[b"content-security-policy"]


def test_host_header_of_a_request_is_not_in_redirections():
    request = {"method": "GET", "path": "/healthz/", "query": b"", "body": b""}
    for app in APPLICATIONS.values():
        asked = answer_to(app, {**request, "headers": [(b"host", b"evil.example")]})
        status, found = RUNNER.run(asked)
        assert status == 404
        assert b"location" not in found
