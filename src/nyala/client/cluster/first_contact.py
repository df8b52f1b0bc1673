"""The first contact of a new client with the masters: all addresses at once, under one deadline."""

import asyncio
from collections.abc import Sequence

from nyala.client.deadline import Attempts, is_cut_short
from nyala.common.errors import NyalaError, TimedOut, Unavailable
from nyala.env.env import Env
from nyala.wire import methods
from nyala.wire.proto import nyala_pb2 as pb

TRY_MS = 1_000
"""Longest time, in milliseconds, for the answer of one address to the question who the masters are."""
SPARE_MS = 50
"""Time, in milliseconds, by which such a call ends before the wait for it, if it ends by itself."""


async def reach(env: Env, addresses: Sequence[str], timeout_ms: int) -> pb.MasterStatusResponse:
    """Return the first status that a master answers, asking again until the deadline.

    Args:
        env: calls, time and tasks.
        addresses: all addresses given.
        timeout_ms: deadline, from now.

    Raises:
        Unavailable: none answers; the message says what happened at each address.
    """
    attempts = Attempts(env, timeout_ms)
    errors: dict[str, str] = {}
    while True:
        given_ms = max(1, min(TRY_MS, attempts.left_ms()))
        answer = await _ask_all(env, addresses, given_ms)
        if isinstance(answer, pb.MasterStatusResponse):
            return answer
        for address, err in answer.items():
            if address not in errors or not is_cut_short(err, given_ms):
                errors[address] = err.message
        if not await attempts.pause():
            failures = "; ".join(f"{a}: {s}" for a, s in errors.items())
            raise Unavailable(
                f"no nyala master answers ({failures}). Check that the cluster runs: nyala status; and "
                "the addresses: masters may have been added and removed since, and one that is still a "
                "master's is enough (nyala master list names all)"
            )


async def _ask_all(
    env: Env, addresses: Sequence[str], timeout_ms: int
) -> pb.MasterStatusResponse | dict[str, NyalaError]:
    """Return the first answer; none: the error of each address, in time also if a call does not end.

    Args:
        env: calls and tasks.
        addresses: all are asked at once.
        timeout_ms: deadline, from now.
    """
    answers: asyncio.Queue[tuple[str, pb.MasterStatusResponse | NyalaError]] = asyncio.Queue()
    own_ms = max(1, timeout_ms - SPARE_MS)  # its own error says more

    async def ask(address: str) -> None:
        try:
            answers.put_nowait((address, await status(env, address, own_ms)))
        except NyalaError as err:
            answers.put_nowait((address, err))

    silent = TimedOut(f"no response within {timeout_ms} ms")
    errors: dict[str, NyalaError] = dict.fromkeys(addresses, silent)
    tasks = [env.tasks.spawn(ask(a), f"who the masters are, asked of {a}") for a in addresses]
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            for _ in tasks:
                address, answer = await answers.get()
                if not isinstance(answer, NyalaError):
                    return answer
                errors[address] = answer
    except TimeoutError:
        pass  # the others stay silent
    finally:
        for task in tasks:
            task.cancel()
    return errors


async def status(env: Env, address: str, timeout_ms: int) -> pb.MasterStatusResponse:
    """Ask one address who the masters are.

    Args:
        env: calls.
        address: that is asked.
        timeout_ms: deadline, from now.
    """
    answer: pb.MasterStatusResponse = await env.rpc.call(
        address, methods.MASTER_STATUS, pb.MasterStatusRequest(), timeout_ms=timeout_ms
    )
    return answer
