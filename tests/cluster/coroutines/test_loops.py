"""Event loops of the asynchronous client: uvloop, several in one process, and those of a web application."""

import asyncio
import re
import threading
import urllib.request
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import uvicorn

import nyala
from nyala.common.errors import InvalidArgument
from tests.cluster.support.loops import on_loop, one_turn

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string())])
PAGE = Path(__file__).parents[3] / "docs" / "use" / "asyncio.md"


def test_client_runs_on_uvloop(cluster):
    uvloop = pytest.importorskip("uvloop")

    async def main():
        async with await nyala.aio.connect(cluster.masters) as client:
            table = await client.create_table("aio_uvloop", SCHEMA, ["k"])
            await asyncio.gather(*(table.upsert([{"k": k, "v": "a"}]) for k in range(64)))
            found = await asyncio.gather(*(table.get({"k": k}) for k in range(64)))
            assert found == [{"k": k, "v": "a"} for k in range(64)]
            assert await table.scan(order=True).count() == 64
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0):
                    await table.upsert([{"k": 1, "v": "b"}])

    uvloop.run(main())


def test_two_loops_of_one_process_have_a_client_each(cluster):
    async def make(client):
        await client.create_table("aio_loops", SCHEMA, ["k"])

    on_loop(cluster, make)
    clients: list[Any] = []
    ready = threading.Barrier(2, timeout=120)
    failed: list[BaseException] = []

    async def work(number: int, client: Any) -> None:
        table = await client.open_table("aio_loops")
        clients.append(client)
        await asyncio.to_thread(ready.wait)
        other = next(c for c in clients if c is not client)
        with pytest.raises(InvalidArgument, match="belongs to another event loop"):
            await other.tables()
        keys = range(number * 100, number * 100 + 50)
        await asyncio.gather(*(table.upsert([{"k": k, "v": "a"}]) for k in keys))
        await asyncio.to_thread(ready.wait)
        assert await table.count() == 100

    def run(number: int) -> None:
        try:
            on_loop(cluster, lambda client: work(number, client))
        except BaseException as err:
            failed.append(err)
            ready.abort()

    threads = [threading.Thread(target=run, args=(n,)) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


def application(masters: str) -> Any:
    """Return the web application of the page, for a cluster."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (source,) = [b for b in blocks if "Starlette(" in b]
    names: dict[str, Any] = {"nyala": nyala}
    exec(compile(source.replace("127.0.0.1:7051", masters), str(PAGE), "exec"), names)
    return names["app"]


def test_web_application_of_the_page_reads_and_writes_rows(cluster):
    async def make(client):
        columns = pa.schema([("id", pa.int64()), ("item", pa.string()), ("amount", pa.float64())])
        await client.create_table("orders", columns, ["id"])

    on_loop(cluster, make)

    def call(address: str, method: str) -> str:
        request = urllib.request.Request(address, method=method)
        with urllib.request.urlopen(request, timeout=120) as answer:
            return str(answer.read().decode())

    async def main() -> None:
        config = uvicorn.Config(
            application(cluster.masters), port=0, log_level="error", lifespan="on"
        )
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve())
        while not server.started:
            assert not serving.done()
            await one_turn()
        host, port = server.servers[0].sockets[0].getsockname()[:2]
        address = f"http://{host}:{port}/orders/"
        try:
            puts = [asyncio.to_thread(call, f"{address}{n}/tea", "PUT") for n in range(8)]
            assert set(await asyncio.gather(*puts)) == {'{"rows":1}'}
            row = await asyncio.to_thread(call, f"{address}3", "GET")
            assert row == '{"id":3,"item":"tea","amount":null}'
        finally:
            server.should_exit = True
            await serving

    asyncio.run(main())
