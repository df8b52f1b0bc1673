"""The web port over real loopback connections."""

import asyncio
import contextlib
import json
import threading
from collections.abc import Callable

import pytest
import uvicorn
import uvloop
from prometheus_client import CollectorRegistry, Counter

from nyala.common import addresses
from nyala.common.errors import Forbidden, InvalidArgument, NotLeader, Unavailable
from nyala.common.options import Options
from nyala.web.options_page import options_page
from nyala.web.pages import Listing, listing
from nyala.web.server import Facts, WebServer
from nyala.web.targets import Target, service_discovery
from nyala.web.threads import threads_page


class Process:
    """Arguments as a service passes them."""

    def __init__(self) -> None:
        self.unavailable_reason: str | None = None
        self.leader = ""
        self.registry = CollectorRegistry()
        self.documents: dict[str, Callable[[], object]] = {}
        self.listings: dict[str, Callable[[], Listing]] = {}
        Counter("nyala_things", "Things.", registry=self.registry).inc(3)

    def facts(self) -> Facts:
        return Facts(
            "nyala <tserver>", lambda: self.unavailable_reason,
            lambda: {"table": "<script>alert(1)</script>"},
            lambda: {"master": "http://127.0.0.1:8051/", "bad": "javascript:alert(1)"}, self.registry,
            self.listings, self.documents, lambda: self.leader,
        )  # fmt: skip


@contextlib.asynccontextmanager
async def served(process):
    server = WebServer(process.facts(), "127.0.0.1:0")
    address = await server.start()
    try:
        yield address
    finally:
        await server.stop()


async def fetch(address, path, method="GET", host=None, accept="*/*"):
    reader, writer = await asyncio.open_connection(*addresses.parse(address))
    head = f"{method} {path} HTTP/1.1\r\nHost: {host or address}\r\nAccept: {accept}\r\n"
    writer.write(f"{head}Connection: close\r\n\r\n".encode())
    head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
    writer.close()
    await writer.wait_closed()
    return int(head.split()[1]), head.lower(), body


def test_healthz_follows_the_process():
    async def scenario():
        process = Process()
        async with served(process) as address:
            assert (await fetch(address, "/healthz"))[::2] == (200, "ok\n")
            process.unavailable_reason = "no majority of masters"
            assert (await fetch(address, "/healthz"))[::2] == (503, "no majority of masters\n")

    uvloop.run(scenario())


def test_idle_web_port_has_no_timer_and_answers_have_a_date(monkeypatch):
    async def tick(*_):
        raise AssertionError("uvicorn wakes ten times a second for this")

    monkeypatch.setattr(uvicorn.Server, "on_tick", tick)

    async def scenario():
        async with served(Process()) as address:
            status, head, _ = await fetch(address, "/healthz")
            assert status == 200
            assert head.count("\r\ndate: ") == 1
            assert head.partition("\r\ndate: ")[2].partition("\r\n")[0].endswith(" gmt")

    uvloop.run(scenario())


def test_page_that_another_server_has_links_to_it():
    def refused() -> Listing:
        raise NotLeader("<b>this master follows")

    async def scenario():
        process = Process()
        process.listings["/tablets"] = refused
        async with served(process) as address:
            assert (await fetch(address, "/tablets"))[::2] == (503, "<b>this master follows\n")
            status, head, body = await fetch(address, "/tablets", accept="text/html,*/*")
            assert (status, "text/html" in head) == (503, True)
            assert "&lt;b&gt;this master follows" in body
            assert "this page of the leader" not in body
            process.leader = "127.0.0.1:8052"
            _, _, body = await fetch(address, "/tablets", accept="text/html,*/*")
            assert 'href="http://127.0.0.1:8052/tablets">this page of the leader master<' in body
            assert '<a href="/">overview</a>' in body

    uvloop.run(scenario())


@pytest.mark.row("A13")
def test_table_of_a_page_is_served_as_json_too():
    async def scenario():
        process = Process()
        process.listings["/options"] = lambda: options_page(Options())
        async with served(process) as address:
            status, head, body = await fetch(address, "/options?format=json")
            assert (status, "application/json" in head) == (200, True)
            shown = json.loads(body)
            assert shown["title"] == "options"
            assert {"name", "value", "default", "differs"} == shown["rows"][0].keys()
            assert "<table" in (await fetch(address, "/options"))[2]

    uvloop.run(scenario())


def test_metrics_are_those_of_the_registry_passed_in():
    async def scenario():
        async with served(Process()) as address:
            status, head, body = await fetch(address, "/metrics")
            assert status == 200
            assert "text/plain" in head
            assert "nyala_things_total 3.0" in body

    uvloop.run(scenario())


@pytest.mark.row("A18")
def test_metrics_are_filtered_by_name():
    async def scenario():
        process = Process()
        Counter("nyala_others", "Others.", registry=process.registry).inc(5)
        async with served(process) as address:
            _, _, every = await fetch(address, "/metrics")
            assert "nyala_things_total 3.0" in every
            assert "nyala_others_total 5.0" in every
            _, _, some = await fetch(address, "/metrics?name[]=nyala_others_total")
            assert "nyala_others_total 5.0" in some
            assert "nyala_things" not in some

    uvloop.run(scenario())


@pytest.mark.row("A18")
def test_prometheus_finds_all_servers_that_have_a_web_port():
    async def scenario():
        targets = [
            Target("127.0.0.1:8050", "tserver", "t", "rack-1"), Target("", "tserver", "silent"),
            Target("127.0.0.1:8051", "master", "m"),
        ]  # fmt: skip
        process = Process()
        process.documents["/prometheus-sd"] = lambda: service_discovery("c", targets, secure=True)
        process.documents["/early"] = not_open
        async with served(process) as address:
            status, head, body = await fetch(address, "/prometheus-sd")
            assert (status, "application/json" in head) == (200, True)
            master, tserver = json.loads(body)
            assert (master["targets"], tserver["targets"]) == (
                ["127.0.0.1:8051"],
                ["127.0.0.1:8050"],
            )
            labels = {
                "__scheme__": "https",
                "__metrics_path__": "/metrics",
                "job": "nyala",
                "cluster": "c",
            }
            assert master["labels"] == labels | {"role": "master", "uuid": "m"}
            assert tserver["labels"] == labels | {
                "role": "tserver",
                "uuid": "t",
                "location": "rack-1",
            }
            assert (await fetch(address, "/early"))[::2] == (503, "not open\n")

    uvloop.run(scenario())


def not_open():
    raise Unavailable("not open")


@pytest.mark.row("A18")
def test_page_of_threads_shows_where_each_of_them_is():
    over = threading.Event()
    waiting = threading.Thread(target=over.wait, name="waits <here>")
    waiting.start()
    try:
        shown = listing("nyala", threads_page())
    finally:
        over.set()
        waiting.join()
    assert "waits &lt;here&gt;" in shown
    assert "threading.py" in shown
    assert "test_page_of_threads_shows_where_each_of_them_is" in shown


def test_status_page_shows_and_escapes_values():
    async def scenario():
        async with served(Process()) as address:
            status, head, body = await fetch(address, "/")
            assert status == 200
            assert "default-src 'self'" in head
            assert "&lt;script&gt;alert(1)&lt;/script&gt;" in body
            assert "<script>" not in body
            assert '<a href="http://127.0.0.1:8051/">master</a>' in body
            assert '<a href="/healthz">' in body
            assert 'href="javascript' not in body
            assert "nyala &lt;tserver&gt;" in body
            assert '<link rel="stylesheet" href="/style.css">' in body
            assert "style=" not in body
            status, head, rules = await fetch(address, "/style.css")
            assert (status, "text/css" in head, "color-scheme: light dark" in rules) == (
                200,
                True,
                True,
            )

    uvloop.run(scenario())


def test_other_paths_methods_and_hosts_are_refused():
    async def scenario():
        async with served(Process()) as address:
            assert (await fetch(address, "/../etc/passwd"))[0] == 404
            assert (await fetch(address, "/metrics", "POST"))[0] == 405
            assert (await fetch(address, "/", host="evil.example:8051"))[0] == 400
            assert (await fetch(address, "/", host="localhost"))[0] == 200
            assert (await fetch(address, "/", host="[::1]:80"))[0] == 200

    uvloop.run(scenario())


def test_web_server_binds_loopback_only_and_names_port_in_use():
    async def scenario():
        for address in ("0.0.0.0:0", "192.168.1.1:8051"):
            with pytest.raises(Forbidden, match="without certificates"):
                await WebServer(Process().facts(), address).start()
        async with served(Process()) as address:
            with pytest.raises(InvalidArgument, match=f"web page on {address}"):
                await WebServer(Process().facts(), address).start()
            assert (await fetch(address, "/healthz"))[0] == 200

    uvloop.run(scenario())


def test_listing_page_aligns_numbers_escapes_texts_and_marks_empty():
    shown = listing("x", Listing("tables", ("name", "rows"), [("<b>", "7"), ("c", "1,234")]))
    assert '<table class="number-2">' in shown
    assert "<td>1,234</td>" in shown
    assert "<td>&lt;b&gt;</td>" in shown
    assert '<p class="none">none</p>' in listing("x", Listing("tables", ("name",), []))
