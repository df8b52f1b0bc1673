"""One server with the log and the peer port only: no client port, and a state machine without effect.

`python -m benchmarks.raft_host DIR PORT,PORT,PORT NUMBER`: the leader's own coroutines are the callers.
"""

import asyncio
import random
import sys
import time
from collections.abc import Sequence

import uvloop

from benchmarks.load import serve_async
from nyala.common.errors import InvalidArgument
from nyala.common.ids import CommittedOperation, ServerUuid, TabletId
from nyala.common.options import Options
from nyala.env.disciplined_clock import DisciplinedClock
from nyala.env.env import system_env
from nyala.env.server_clock import ServerClock
from nyala.raft.membership import Configuration, Member
from nyala.replica.host import ReplicaHost
from nyala.replica.replica import Replica
from nyala.replica.state_machine import AnyCheckpoint, FlushPoint
from nyala.wire.channels import GrpcRpc
from nyala.wire.peers import PeerTransport

GROUP = TabletId("a" * 32)
PAYLOAD = bytes(256)


class Nothing:
    """A state machine without state."""

    flush_point = FlushPoint()

    def apply(self, operations: Sequence[CommittedOperation]) -> list[bytes]:
        return [b""] * len(operations)

    def unflushed_bytes(self) -> int:
        return 0

    def prepare_flush(self, flush_point: FlushPoint) -> None:
        return None

    def checkpoint(self) -> AnyCheckpoint:
        raise InvalidArgument("this machine has no data")

    def close(self) -> None: ...


def member(number: int, port: int) -> Member:
    """Return the configuration entry of server `number`."""
    return Member(ServerUuid(f"{number + 1:032x}"), f"127.0.0.1:{port}")


async def start(directory: str, ports: list[int], number: int) -> Replica:
    """Start a server and return its replica."""
    env = system_env(GrpcRpc())
    env.files.make_dir(directory)
    members = tuple(member(n, port) for n, port in enumerate(ports))
    transport = PeerTransport(env, lambda: "bench")
    physical = DisciplinedClock(env.clock, Options().clock_max_ahead_ms)
    clock = ServerClock(physical, env.files, f"{directory}/clock")
    uuid = members[number].uuid
    host = await ReplicaHost.open(
        env, Options(), directory, uuid, transport, clock, lambda group, path: Nothing()
    )
    await transport.listen(members[number].peer_address, uuid)
    return await host.create_replica(GROUP, Configuration(members), lambda path: Nothing())


async def measure(replica: Replica, callers: int, seconds: float) -> dict[str, object]:
    """Write from that many coroutines if this server leads; otherwise wait."""
    latencies: list[int] = []
    began = time.perf_counter()
    counted, ends = began + seconds / 10, began + seconds

    async def work(number: int) -> None:
        client, sequence, now = random.randbytes(16), 0, began
        while now < ends:
            sequence += 1
            await replica.write(
                PAYLOAD, client_id=client, sequence=sequence, first_outstanding=sequence,
                timeout_ms=10_000,
            )  # fmt: skip
            then, now = now, time.perf_counter()
            if then >= counted:
                latencies.append(int((now - then) * 1e6))

    if replica.is_leader:
        await asyncio.gather(*(work(n) for n in range(callers)))
    else:
        await asyncio.sleep(seconds)
    return {"latencies_us": latencies, "errors": 0, "seconds": time.perf_counter() - counted}


async def main(directory: str, ports: list[int], number: int) -> None:
    """Serve and measure until the input ends."""
    replica = await start(f"{directory}/{number}", ports, number)
    await serve_async(lambda callers, seconds: measure(replica, callers, seconds))


if __name__ == "__main__":
    sys.setswitchinterval(0.0005)
    uvloop.run(main(sys.argv[1], [int(p) for p in sys.argv[2].split(",")], int(sys.argv[3])))
