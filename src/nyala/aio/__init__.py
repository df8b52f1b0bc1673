"""The asynchronous client: coroutines on the caller's own event loop, with the names of `nyala.Client`.

async with await nyala.aio.connect("127.0.0.1:7051") as client:
    table = await client.open_table("orders")
    row = await table.get({"id": 1})
"""

from nyala.aio.client import AsyncClient, connect
from nyala.aio.journals.journal import AsyncJournal
from nyala.aio.journals.log import AsyncLog
from nyala.aio.scan import AsyncScan
from nyala.aio.table import AsyncTable

__all__ = ["AsyncClient", "AsyncJournal", "AsyncLog", "AsyncScan", "AsyncTable", "connect"]
