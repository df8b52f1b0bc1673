"""Async iterators of the client driven by synchronous tests, item by item."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import pyarrow as pa

from nyala.client.read.ordered_merge import merge
from nyala.common.schema import Schema
from nyala.env.env import system_env

T = TypeVar("T")


def driven(items: AsyncGenerator[T, None]) -> Iterator[T]:
    """Yield the items of an async generator, which runs on a loop of its own."""
    loop = asyncio.new_event_loop()
    try:
        while True:
            try:
                item = loop.run_until_complete(anext(items))
            except StopAsyncIteration:
                return
            yield item
    finally:
        loop.run_until_complete(items.aclose())
        loop.close()


async def items_of(given: Iterable[T]) -> AsyncIterator[T]:
    """Yield items."""
    for item in given:
        yield item


def merged(schema: Schema, streams: Sequence[Iterable[pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
    """Yield what `merge` makes of some streams."""
    rpc: Any = None
    tasks = system_env(rpc).tasks
    return driven(merge(schema, [items_of(s) for s in streams], tasks))
