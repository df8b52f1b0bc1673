"""Load of the memory budget's tests: flushes as tablet servers make them, drawn writes."""

from types import SimpleNamespace
from typing import Any

from nyala.tserver.flush_scheduler import FlushScheduler


async def flusher(fleet, number, options, look=lambda: None):
    """Let a server flush when its memory is tight, as tablet servers do."""
    tablets: Any = SimpleNamespace(host=fleet.host(number))
    FlushScheduler(fleet.processes[number].env, tablets, options, (look,)).start()


async def burst(fleet, rng, clients, expected, sizes=(0, 100, 1000, 3000)):
    """Random writes of a client to a group, each retried until it succeeds."""
    group, client = rng.choice(list(clients))
    for _ in range(rng.randrange(1, 30)):
        clients[group, client] += 1
        sequence = clients[group, client]
        payload = b"k 1" + b" " * rng.choice(sizes)
        for _ in range(400):
            number = fleet.leading(group)
            if number is not None:
                call = fleet.call(
                    number, payload, group=group, sequence=sequence, first=sequence,
                    client=bytes([client]) * 16, timeout_ms=1000,
                )  # fmt: skip
                answer = fleet.spawn(number, call)
                await fleet.until(lambda a=answer: a, "an answer")
                if hasattr(answer[0], "result"):
                    break
            await fleet.pass_ms(100)
        else:
            raise AssertionError(f"a write was never taken: {number} {answer}")
        expected[group] += 1
