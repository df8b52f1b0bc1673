"""Runs an operator's coroutine in the real environment, with or without a connection to a cluster."""

import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from nyala.client.core import ClientCore
    from nyala.env.env import Env
    from nyala.env.rpc import Method

T = TypeVar("T")
TIMEOUT_MS = 15_000


def run_alone(work: "Callable[[Env], Coroutine[Any, Any, T]]", servers: str = "") -> T:
    """Return what `work` returns, on a loop of its own. Warnings that it logs are lines on standard error.

    Args:
        work: the coroutine.
        servers: addresses of servers that it calls; empty: none.
    """
    from nyala.client.credentials import (
        credentials_for,  # slow: each verb imports only its own modules
    )
    from nyala.env.env import system_env
    from nyala.wire.channels import GrpcRpc

    async def main() -> T:
        rpc = GrpcRpc(credentials=credentials_for(servers) if servers else None)
        env = system_env(rpc)
        try:
            return await work(env)
        finally:
            await rpc.close()
            await env.tasks.close()

    with _warnings_as_lines():
        return asyncio.run(main())


class _OneLine(logging.Formatter):
    """Formats a record as one line, with the message of an error instead of its traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        args = record.args if isinstance(record.args, tuple) else ()
        text = str(record.msg) % tuple(map(_plain, args)) if args else record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            text += f": {_plain(record.exc_info[1])}"
        return " ".join(f"nyala: {text}".split())


def _plain(value: object) -> object:
    """Return an error as text: without the number of one of the operating system, and never empty."""
    if isinstance(value, OSError) and value.filename:
        return f"{value.filename}: {value.strerror}"
    return (str(value) or repr(value)) if isinstance(value, BaseException) else value


@contextmanager
def _warnings_as_lines() -> Iterator[None]:
    handler, logger = logging.StreamHandler(sys.stderr), logging.getLogger("nyala")
    handler.setLevel(logging.WARNING)
    handler.setFormatter(_OneLine())
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


@asynccontextmanager
async def client_of(env: "Env", masters: str) -> "AsyncIterator[ClientCore]":
    """Yield a client of a cluster whose masters may be down: it calls none by itself.

    Args:
        env: of `run_alone`.
        masters: addresses of masters.
    """
    from nyala.client.cluster.masters import parse_addresses
    from nyala.client.core import ClientCore, ClientOptions

    core = ClientCore(env, parse_addresses(masters), ClientOptions(timeout_ms=TIMEOUT_MS))
    try:
        yield core
    finally:
        await core.close()


def connected(masters: str, work: "Callable[[ClientCore], Coroutine[Any, Any, T]]") -> T:
    """Run a coroutine with a client connected to the masters; return its result."""
    from nyala.client.connection import Connection
    from nyala.client.core import ClientOptions

    connection = Connection(masters, ClientOptions(timeout_ms=TIMEOUT_MS))
    try:
        return connection.run(work(connection.core))
    finally:
        connection.close()


def ask_leader(masters: str, method: "Method", request: Any) -> Any:
    """Return the leader master's answer to one request that changes nothing.

    Args:
        masters: addresses of masters.
        method: of the masters.
        request: message of the method.
    """
    return connected(
        masters, lambda core: core.masters.call(method, request, timeout_ms=TIMEOUT_MS)
    )


def change_at_leader(masters: str, method: "Method", request: Any) -> Any:
    """Return the leader master's answer to one request that changes something.

    Args:
        masters: addresses of masters.
        method: of the masters.
        request: message of the method.

    Raises:
        OutcomeUnknown: the request was sent again, and refused, or no answer arrived: the first one may have
            had its effect.
    """
    return connected(
        masters, lambda core: core.masters.change(method, request, timeout_ms=TIMEOUT_MS)
    )
