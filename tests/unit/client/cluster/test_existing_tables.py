"""Definitions that may find their work done: `create_table(exist_ok=True)`, `drop_table(missing_ok=True)`."""

import asyncio
from typing import Any

import pyarrow as pa
import pytest

from nyala.client.calls.definitions import table_definition
from nyala.client.cluster.ddl import describe
from nyala.client.journal.core import JournalCore
from nyala.common.errors import AlreadyPresent, NotFound
from tests.unit.master.support.ddl_cluster import TIMEOUT_MS, Ddl, hashed, with_cluster

COLUMNS = [("k", pa.int64()), ("v", pa.int64())]


async def create(ddl: Ddl, *columns: tuple[str, pa.DataType], key: str = "k", **more: Any) -> Any:
    made = table_definition("t", pa.schema(list(columns)), [key], None, 3, **more)
    return await ddl.ask(made.create, ddl.core)


def test_existing_table_is_returned_with_its_rows():
    async def work(ddl: Ddl) -> None:
        first = await create(ddl, *COLUMNS, exist_ok=True)
        await ddl.put(first, 1, 2)
        for columns in (COLUMNS, COLUMNS[:1]):  # it may have more of them
            again = await create(ddl, *columns, exist_ok=True)
            assert again.id == first.id
        assert await ddl.keys(again) == [1, 2]
        with pytest.raises(AlreadyPresent, match="drop it first"):
            await create(ddl, *COLUMNS)

    with_cluster(work)


def test_existing_table_is_returned_when_its_tablets_run():
    async def work(ddl: Ddl) -> None:
        made = table_definition("t", pa.schema(COLUMNS), ["k"], hashed(6), 3, exist_ok=True)

        async def ready() -> bool:
            await made.create(ddl.core)
            return bool((await describe(ddl.core.masters, "t", TIMEOUT_MS)).ready)

        async def both() -> tuple[bool, bool]:
            return await asyncio.gather(ready(), ready())

        assert all(await ddl.ask(both))

    with_cluster(work)


def test_existing_journal_is_returned_and_a_table_of_its_name_refused():
    async def work(ddl: Ddl) -> None:
        journals = JournalCore(ddl.core)
        first = await ddl.ask(journals.create, "j", 3, 1 << 20)
        again = await ddl.ask(journals.create, "j", 3, 1 << 21, exist_ok=True)
        assert (again.id, again.options) == (first.id, first.options)
        with pytest.raises(AlreadyPresent):
            await ddl.ask(journals.create, "j", 3, 1 << 20)
        await create(ddl, *COLUMNS)
        with pytest.raises(AlreadyPresent, match="'t'"):
            await ddl.ask(journals.create, "t", 3, 1 << 20, exist_ok=True)

    with_cluster(work)


def test_existing_table_that_differs_is_refused():
    async def work(ddl: Ddl) -> None:
        await create(ddl, *COLUMNS)
        for columns, key, text in (
            ([*COLUMNS, ("w", pa.int64())], "k", "no column 'w'"),
            ([COLUMNS[0], ("v", pa.string())], "k", "column 'v' has type int64, not string"),
            (COLUMNS, "v", r"primary key is \['k'\], not \['v'\]"),
        ):
            with pytest.raises(AlreadyPresent, match=text):
                await create(ddl, *columns, key=key, exist_ok=True)

    with_cluster(work)


def test_missing_table_is_dropped_only_if_that_is_said():
    async def work(ddl: Ddl) -> None:
        await create(ddl, *COLUMNS)
        await ddl.ask(ddl.core.ddl.drop_table, "t", missing_ok=True)
        await ddl.ask(ddl.core.ddl.drop_table, "t", missing_ok=True)
        with pytest.raises(NotFound):
            await ddl.ask(ddl.core.ddl.drop_table, "t")

    with_cluster(work)
