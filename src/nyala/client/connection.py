"""Connection: the client's coroutines on an event loop in a thread of its own, for the synchronous API.

`shared` keeps one connection per process and cluster, for scan tokens that arrive without a client.
"""

import os
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, NoReturn, TypeVar

from nyala.client.caller import closed_meanwhile
from nyala.client.calls.opening import OpenClient
from nyala.client.calls.soon_writes import SoonWrites
from nyala.client.calls.thread_caller import ThreadCaller
from nyala.client.core import ClientCore, ClientOptions
from nyala.client.credentials import cluster_key, remembered
from nyala.common.optional.pandas_lookup import look_for_imported_pandas
from nyala.env.loop_thread import LoopThread
from nyala.env.monotonic import began_us
from nyala.env.tasks import ClosedDuringCall
from nyala.security.files import CredentialFiles

T = TypeVar("T")


class Connection:
    """One `ClientCore` and the thread that runs it. Any thread may call.

    Args:
        masters: "host:port,..." or a sequence of addresses; one that answers is enough.
        options: see `ClientOptions`.

    Attributes:
        caller: makes the calls that `nyala.client.calls` describes, in any thread.
        soon: the writes whose results are futures.

    Raises:
        Unavailable: no master answers at these addresses.
        InvalidArgument: the credentials of the environment are invalid.
    """

    def __init__(self, masters: str, options: ClientOptions) -> None:
        began = began_us()
        look_for_imported_pandas()
        self._loop = LoopThread("nyala-client")
        self.caller = ThreadCaller(self._loop)

        async def make() -> OpenClient:
            return OpenClient(masters, options)

        try:
            self._open = self._loop.run(make())
            self._loop.run(self._open.reach(began))
        except BaseException:
            self._loop.close()  # also when interrupted: the thread must end
            raise
        self.soon = SoonWrites(self._loop, self.core)

    @property
    def core(self) -> ClientCore:
        """The client's coroutines, which run on the loop of this connection only."""
        return self._open.core

    @property
    def call(self) -> tuple[ClientCore, ThreadCaller]:
        """The first arguments of the calls that `nyala.client.calls` describes."""
        return self.core, self.caller

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a client, and the tables, journals and logs that it has opened, cannot be pickled or copied: "
            "its connections and its thread belong to this process. Pass client.masters and the names, and "
            "call nyala.connect() in the other process; scan tokens can be pickled"
        )

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine of the core that changes nothing, and wait for its result.

        Raises:
            Unavailable: closed by another thread meanwhile.
        """
        return self._loop.run(work)

    def finish(self, work: Coroutine[Any, Any, T]) -> T:
        """As `run`, for a coroutine that goes on if the caller is interrupted, as a release does."""
        return self._loop.finish(work)

    def leave(self, begin: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Have a coroutine run without waiting for it; nothing is done if the connection is closed.

        Args:
            begin: returns the coroutine.
        """
        self._loop.leave(begin)

    def acquire(
        self, begin: Callable[[], Coroutine[Any, Any, T]], release: Callable[[T], Coroutine[Any, Any, object]]
    ) -> T:  # fmt: skip
        """As `run`; what was acquired is released if the caller is interrupted as it arrives.

        Args:
            begin: returns the coroutine. It releases by itself what it holds when it is cancelled.
            release: releases a result.
        """
        return self._loop.acquire(begin, release)

    def change(self, work: Coroutine[Any, Any, T]) -> T:
        """As `run`, for a coroutine that changes something.

        Raises:
            OutcomeUnknown: closed by another thread meanwhile.
        """
        try:
            return self._loop.run(work)
        except ClosedDuringCall as err:
            raise closed_meanwhile(sent=True) from err

    def iterate(self, items: AsyncIterator[T]) -> Iterator[T]:
        """Yield the items of an async iterator of the core, fetching one ahead."""
        return self._loop.iterate(items)

    def iterate_pages(self, pages: AsyncIterator[list[T]]) -> Iterator[T]:
        """Yield the items of the pages of an async iterator of the core, fetching one page ahead."""
        for page in self._loop.iterate(pages):
            yield from page

    @property
    def closed(self) -> bool:
        """True if the connection was closed."""
        return self._loop.closed

    def close(self) -> None:
        """End the client; a second call does nothing."""
        self._loop.close(self._open.close)


_Key = tuple[int, str, CredentialFiles | None, int]
_shared: dict[_Key, Connection] = {}
_connecting: dict[_Key, threading.Lock] = {}
"""One lock per process, since a forked child may inherit one that stays held, and per connection."""


def shared(masters: str, timeout_ms: int = ClientOptions().timeout_ms) -> Connection:
    """Return this process' shared connection to a cluster, which is never closed. Any thread.

    There is one for each user whose credentials this process was given, and for each deadline.

    Args:
        masters: "host:port,...".
        timeout_ms: deadline of each call.

    Raises:
        Unavailable: no master answers at these addresses.
    """
    key = (os.getpid(), cluster_key(masters), remembered(masters), timeout_ms)
    with _connecting.setdefault(key, threading.Lock()):
        if key not in _shared:
            _shared[key] = Connection(masters, ClientOptions(timeout_ms=timeout_ms))
        return _shared[key]
