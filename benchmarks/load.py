"""Client processes that receive orders (number of callers, seconds) and return latencies.

A caller is a thread with blocking calls, or a coroutine, as in a user's program.
"""

import asyncio
import json
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rate:
    """Result of one measurement over all callers.

    Attributes:
        ops_s: acknowledged operations per second.
        p50_ms: median latency.
        p99_ms: 99th percentile of the latency.
        errors: number of failed calls.
    """

    ops_s: float
    p50_ms: float
    p99_ms: float
    errors: int


class Clients:
    """Processes of one kind of client.

    Args:
        module: run as `python -m module ARGUMENTS`; it calls `serve`.
        arguments: arguments of each process, before its number.
        processes: number of processes.
    """

    def __init__(self, module: str, arguments: Sequence[str], processes: int) -> None:
        self._running = [
            subprocess.Popen(
                [sys.executable, "-m", module, *arguments, str(number)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
            )
            for number in range(processes)
        ]  # fmt: skip
        for process in self._running:
            if process.stdout is None or process.stdout.readline().strip() != "ready":
                self.close()
                raise RuntimeError(f"a client process ({module}) did not start")

    def measure(self, callers: int, seconds: float) -> Rate:
        """Run that many callers, over all processes, for some seconds."""
        share = [callers // len(self._running)] * len(self._running)
        for number in range(callers % len(self._running)):
            share[number] += 1
        busy = [p for p, count in zip(self._running, share, strict=True) if count]
        for process, count in zip(self._running, share, strict=True):
            if count:
                assert process.stdin is not None
                process.stdin.write(json.dumps({"callers": count, "seconds": seconds}) + "\n")
                process.stdin.flush()
        answers = [json.loads(p.stdout.readline()) for p in busy if p.stdout is not None]
        took = sorted(us for answer in answers for us in answer["latencies_us"])
        if not took:
            return Rate(0.0, 0.0, 0.0, sum(a["errors"] for a in answers))
        return Rate(
            sum(len(a["latencies_us"]) / a["seconds"] for a in answers),
            took[len(took) // 2] / 1000,
            took[min(len(took) - 1, len(took) * 99 // 100)] / 1000,
            sum(a["errors"] for a in answers),
        )

    def close(self) -> None:
        """End the processes."""
        for process in self._running:
            if process.stdin is not None:
                process.stdin.close()
        for process in self._running:
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdout is not None:
                process.stdout.close()


def serve(measure: Callable[[int, float], dict[str, object]]) -> None:
    """In a client process: report readiness, then carry out orders until the input ends."""
    print("ready", flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        print(json.dumps(measure(order["callers"], order["seconds"])), flush=True)


async def serve_async(measure: Callable[[int, float], Awaitable[dict[str, object]]]) -> None:
    """As `serve`, on an event loop that is used by other tasks."""
    loop = asyncio.get_running_loop()
    print("ready", flush=True)
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        order = json.loads(line)
        print(json.dumps(await measure(order["callers"], order["seconds"])), flush=True)


def in_threads(call: Callable[[int, int], None], callers: int, seconds: float) -> dict[str, object]:
    """Call `call(caller, number)` from that many threads for some seconds; return the result for `serve`.

    The first tenth of the time is not counted.
    """
    latencies: list[list[int]] = [[] for _ in range(callers)]
    errors = [0] * callers
    began = time.perf_counter()
    counted, ends = began + seconds / 10, began + seconds

    def work(caller: int) -> None:
        own_latencies, number, now = latencies[caller], 0, began
        while now < ends:
            try:
                call(caller, number)
            except Exception:  # any error is counted and reported
                errors[caller] += 1
            then, now = now, time.perf_counter()
            number += 1
            if then >= counted:
                own_latencies.append(int((now - then) * 1e6))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {
        "latencies_us": [us for own_latencies in latencies for us in own_latencies],
        "errors": sum(errors),
        "seconds": time.perf_counter() - counted,
    }


async def in_coroutines(
    call: Callable[[int, int], Awaitable[object]], callers: int, seconds: float
) -> dict[str, object]:
    """Await `call(caller, number)` in that many coroutines of this loop; see `in_threads`.

    Args:
        call: one operation.
        callers: number of coroutines.
        seconds: how long.
    """
    latencies: list[int] = []
    errors = 0
    began = time.perf_counter()
    counted, ends = began + seconds / 10, began + seconds

    async def work(caller: int) -> None:
        nonlocal errors
        number, now = 0, began
        while now < ends:
            try:
                await call(caller, number)
            except Exception:  # any error is counted and reported
                errors += 1
            then, now = now, time.perf_counter()
            number += 1
            if then >= counted:
                latencies.append(int((now - then) * 1e6))

    await asyncio.gather(*(work(n) for n in range(callers)))
    return {
        "latencies_us": latencies, "errors": errors, "seconds": time.perf_counter() - counted,
    }  # fmt: skip
