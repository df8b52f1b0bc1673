"""A client process of small calls: `python -m benchmarks.small_calls MASTERS TABLE KIND WORK NUMBER`.

KIND is threads (`nyala.connect`), or coroutines (`nyala.aio.connect` on uvloop); WORK is get or upsert.
"""

import random
import sys
from typing import Any

import nyala
from benchmarks.load import in_coroutines, in_threads, serve, serve_async
from benchmarks.small_writes import VALUE_BYTES

KEYS = 10_000
"""Number of rows, which the benchmark has written."""


def calls(table: Any, work: str, number: int) -> Any:
    """Return a function of (caller, number) that makes one call of a table, of either interface."""
    rng = random.Random(number)
    keys = [rng.randrange(KEYS) for _ in range(100_000)]
    value = "".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=VALUE_BYTES))

    def call(caller: int, number: int) -> Any:
        key = keys[(caller * 7919 + number) % len(keys)]
        return table.get({"k": key}) if work == "get" else table.upsert([{"k": key, "v": value}])

    return call


async def coroutines(masters: str, name: str, work: str, number: int) -> None:
    """Carry out the orders of `load.Clients` in coroutines.

    Args:
        masters: addresses.
        name: of the table.
        work: get or upsert.
        number: of the process.
    """
    async with await nyala.aio.connect(masters) as client:
        call = calls(await client.open_table(name), work, number)
        await call(0, 0)
        await serve_async(lambda callers, seconds: in_coroutines(call, callers, seconds))


def main(masters: str, name: str, kind: str, work: str, number: int) -> None:
    """Carry out the orders of `load.Clients`.

    Args:
        masters: addresses.
        name: of the table.
        kind: threads or coroutines.
        work: get or upsert.
        number: of the process.
    """
    if kind == "coroutines":
        import uvloop

        uvloop.run(coroutines(masters, name, work, number))
        return
    with nyala.connect(masters) as client:
        call = calls(client.table(name), work, number)
        call(0, 0)
        serve(lambda callers, seconds: in_threads(call, callers, seconds))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4], int(sys.argv[5]))
