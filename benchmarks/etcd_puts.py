"""A client process of etcd: `python -m benchmarks.etcd_puts LEADER threads|coroutines NUMBER`."""

import random
import sys

import grpc

from benchmarks.etcd import put_request
from benchmarks.load import in_coroutines, in_threads, serve
from benchmarks.small_writes import KEYS

PATH = "/etcdserverpb.KV/Put"
VALUE = b"v" * 256


def requests(number: int) -> list[bytes]:
    """Return puts of random keys."""
    rng = random.Random(number)
    return [put_request(b"%08d" % rng.randrange(KEYS), VALUE) for _ in range(20_000)]


def from_threads(address: str, number: int) -> None:
    """Call from threads with blocking calls."""
    puts = requests(number)
    with grpc.insecure_channel(address) as channel:
        put = channel.unary_unary(PATH)

        def call(caller: int, number: int) -> None:
            put(puts[(caller * 7919 + number) % len(puts)], timeout=10)

        serve(lambda callers, seconds: in_threads(call, callers, seconds))


async def _measure(
    address: str, puts: list[bytes], callers: int, seconds: float
) -> dict[str, object]:
    async with grpc.aio.insecure_channel(address) as channel:
        put = channel.unary_unary(PATH)
        await put(puts[0])

        async def call(caller: int, number: int) -> None:
            await put(puts[(caller * 7919 + number) % len(puts)], timeout=10)

        return await in_coroutines(call, callers, seconds)


def main(address: str, kind: str, number: int) -> None:
    """Carry out the orders of `load.Clients`."""
    if kind == "threads":
        from_threads(address, number)
        return
    import uvloop

    puts = requests(number)
    serve(lambda callers, seconds: uvloop.run(_measure(address, puts, callers, seconds)))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
