"""Waits for new changes of a table: one request to each server that leads some of its tablets."""

import asyncio

from nyala.client.cluster.tablet_cache import LOOKUP_TIMEOUT_MS, OpenTable, TabletCache
from nyala.common.errors import NyalaError
from nyala.env.env import Env
from nyala.wire import methods
from nyala.wire.proto import reads_pb2 as pb

SILENT_MS = 2_000
"""Time beyond the wait after which a server that does not answer is given up, in milliseconds."""
RETRY_MS = 200
"""Pause after a server that did not answer, before its tablets are looked up again, in milliseconds."""


async def wait_for_changes(
    env: Env, locations: TabletCache, table: OpenTable, after: int, wait_ms: int
) -> None:
    """Wait until a tablet has something newer, or for some time. A server's failure ends the wait early.

    Args:
        env: calls, sleep.
        locations: finds the tablets again after a failure.
        table: the open table.
        after: hybrid time up to which everything is known.
        wait_ms: longest wait.
    """
    by_address: dict[str, list[str]] = {}
    for tablet in table.tablets:
        for address in tablet.addresses()[:1]:
            by_address.setdefault(address, []).append(tablet.id)
    answers: asyncio.Queue[bool | None] = asyncio.Queue()

    async def ask(address: str, tablets: list[str]) -> None:
        request = pb.AwaitChangesRequest(tablet_ids=tablets, after=after, wait_ms=wait_ms)
        found: bool | None = None
        try:
            answer: pb.AwaitChangesResponse = await env.rpc.call(
                address, methods.AWAIT_CHANGES, request, timeout_ms=wait_ms + SILENT_MS
            )
            found = answer.changed
        except NyalaError:
            await env.tasks.sleep_ms(min(RETRY_MS, wait_ms))
        finally:  # also when the client is closed, which cancels this task
            answers.put_nowait(found)

    if not by_address:
        await env.tasks.sleep_ms(wait_ms)
    changed: bool | None = False if by_address else None
    asks = [env.tasks.spawn(ask(a, t), f"changes at {a}") for a, t in by_address.items()]
    try:
        for _ in asks:
            changed = await answers.get()
            if changed is not False:
                break
    finally:
        for task in asks:
            task.cancel()
    if changed is None:
        try:
            await locations.refresh_shared(table, LOOKUP_TIMEOUT_MS)
        except NyalaError:
            return  # the read that follows tells
