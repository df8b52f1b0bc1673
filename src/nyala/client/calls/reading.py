"""Look-ups by primary key as a coroutine over a `Caller`."""

from collections.abc import Mapping, Sequence
from typing import Any

from nyala.client.caller import Caller
from nyala.client.calls.keys import KeyFinder
from nyala.client.cluster.tablet_cache import OpenTable
from nyala.client.core import ClientCore
from nyala.common.errors import RangesChanged


async def get_rows(
    core: ClientCore,
    caller: Caller,
    table: OpenTable,
    keys: KeyFinder,
    key: Mapping[str, Any] | Sequence[Mapping[str, Any]],
    columns: Sequence[str] | None,
) -> dict[str, Any] | list[dict[str, Any] | None] | None:
    """Look up one key or some keys; raises and returns as `Table.get`.

    Args:
        core: the client.
        caller: makes the call.
        table: the open table.
        keys: of the table.
        key: a dict of the key columns, or a list of them.
        columns: those wanted; None: all.
    """
    wanted = keys.columns(columns)
    found = keys.locate(key)
    if found is not None:
        timeout_ms = core.options.timeout_ms
        try:
            rows = await core.getter.get(
                table, found.tablet, [found.encoded], found.as_batch, wanted, timeout_ms, caller
            )
        except RangesChanged:
            rows = await caller.run(core.get(table, found.as_batch(), wanted))
        return rows[0]
    made: list[dict[str, Any] | None] = []
    for batch in keys.batches(key):
        made += await caller.run(core.get(table, batch, wanted))
    return made[0] if isinstance(key, Mapping) else made
