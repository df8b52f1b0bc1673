"""The first contact of a new client with the masters: all addresses at once, under one deadline."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from nyala.client.deadline import Attempts, is_cut_short
from nyala.common.errors import InvalidArgument, NyalaError, TimedOut, Unavailable
from nyala.env.env import Env
from nyala.env.tasks import for_at_most
from nyala.wire import methods
from nyala.wire.proto import nyala_pb2 as pb

TRY_MS = 1_000
"""Time, in milliseconds, for the answer of one address to the question who the masters are.

It is doubled with each round of a contact with slow masters.
"""
SPARE_MS = 50
"""Time, in milliseconds, by which such a call ends before the wait for it, if it ends by itself."""
DOUBT_S = 0.5
"""Time without an answer after which the addresses are asked whether TLS is the reason, in seconds."""
REASON_S = 0.5
"""Longest wait for that reason once no master has answered, in seconds."""


@dataclass(frozen=True, slots=True)
class SlowMasters:
    """Wait for masters that accept a connection and do not answer in time.

    Attributes:
        longest_ms: deadline for their answer, from the beginning of the contact, in milliseconds.
        accepts: returns whether an address accepts connections.
    """

    longest_ms: int
    accepts: Callable[[str], Coroutine[Any, Any, bool]]


async def reach(
    env: Env, addresses: Sequence[str], timeout_ms: int, slow: SlowMasters | None = None
) -> pb.MasterStatusResponse:
    """Return the first status that a master answers, asking again until the deadline.

    Args:
        env: calls, time and tasks.
        addresses: all addresses given.
        timeout_ms: deadline, from now, unless one of them is slow.
        slow: for servers that accept connections and are silent; None: they are awaited no longer.

    Raises:
        InvalidArgument: none is the address of a master.
        Unavailable: none answers; the message says what happened at each address.
    """
    attempts, longest = Attempts(env, timeout_ms), Attempts(env, slow.longest_ms if slow else 0)
    errors: dict[str, str] = {}
    try_ms, waits = TRY_MS, False
    while True:
        given_ms = max(1, min(try_ms, attempts.left_ms()))
        answer = await _ask_all(env, addresses, given_ms)
        if isinstance(answer, pb.MasterStatusResponse):
            return answer
        if all(isinstance(err, InvalidArgument) for err in answer.values()):
            raise InvalidArgument("; ".join(err.message for err in answer.values()))
        for address, err in answer.items():
            if address not in errors or not is_cut_short(err, given_ms):
                errors[address] = err.message
        ended = not await attempts.pause()
        if slow and (waits or ended):
            silent = [
                a for a, err in answer.items() if isinstance(err, TimedOut) and not err.answered
            ]
            ended = not await _any_accepts(silent, slow) or not await longest.pause()
            attempts, waits, try_ms = longest, True, 2 * try_ms
        if ended:
            failures = "; ".join(f"{a}: {s}" for a, s in errors.items())
            raise Unavailable(
                f"no nyala master answers ({failures}). Check that the cluster runs: nyala status; and "
                "the addresses: masters may have been added and removed since, and one that is still a "
                "master's is enough (nyala master list names all)"
            )


async def _any_accepts(addresses: Sequence[str], slow: SlowMasters) -> bool:
    """Return whether one of some addresses accepts connections."""
    return any(await asyncio.gather(*map(slow.accepts, addresses)))


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
        except InvalidArgument as err:
            answers.put_nowait((address, await _of_other_kind(env, address, err, own_ms)))
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


async def explained(
    reaching: Coroutine[Any, Any, None],
    addresses: Sequence[str],
    why: Callable[[str], Coroutine[Any, Any, NyalaError | None]],
) -> None:
    """Reach the masters; if that fails because of TLS, or of a wrong port, the error says so.

    The addresses are asked for the reason while the masters are awaited, so that the error comes no later.

    Args:
        reaching: waits until one master answers.
        addresses: of the masters.
        why: returns the reason for which the server at an address does not answer; None: not known.

    Raises:
        Unavailable: no master answers.
        NyalaError: the reason.
    """
    reached = asyncio.ensure_future(reaching)
    reasons: list[asyncio.Task[NyalaError | None]] = []
    try:
        await for_at_most(DOUBT_S, reached)
        if not reached.done() or reached.exception() is not None:
            reasons += [asyncio.ensure_future(why(address)) for address in addresses]
        await reached
    except Unavailable as err:
        await for_at_most(REASON_S, *reasons)
        for task in reasons:
            if task.done() and (reason := task.result()) is not None:
                raise reason from err
        raise
    finally:
        for task in (reached, *reasons):
            task.cancel()
        await asyncio.gather(reached, *reasons, return_exceptions=True)


async def _of_other_kind(
    env: Env, address: str, err: InvalidArgument, timeout_ms: int
) -> NyalaError:
    """Return what the server at an address is, which has no methods of masters.

    Args:
        env: calls.
        address: of the server.
        err: its answer to a method of masters; returned if it does not say more.
        timeout_ms: deadline, from now.
    """
    try:
        info: pb.ServerInfoResponse = await env.rpc.call(
            address, methods.SERVER_INFO, pb.ServerInfoRequest(), timeout_ms=timeout_ms
        )
    except NyalaError:
        return err
    if info.role != "tserver":
        return err
    known = ", ".join(info.master_addresses) or "not known to it"
    return InvalidArgument(
        f"{address} is the address of a tablet server, and clients connect to masters, which are at {known}"
    )


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
