"""Holds: a snapshot that stays readable for long readers, even when tablets move.

A hold is requested from every replica of every tablet, since any of them may become leader. It is in effect
once a majority of each tablet's voters keeps it. It is renewed every few seconds, for servers that were
down, restarted, or got a replica since, and expires after its time to live.
"""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from types import TracebackType
from typing import ClassVar

from nyala.client.cluster.tablet_cache import OpenTable, TabletCache
from nyala.client.deadline import Attempts
from nyala.common.errors import HistoryGone, InvalidArgument, NyalaError, Retryable, Unavailable
from nyala.common.hybrid_time import to_micros
from nyala.env.clock import random_id
from nyala.env.env import Env
from nyala.wire import methods, status
from nyala.wire.proto import nyala_pb2 as pb

MAX_S = 7 * 86_400
RENEW_MS = 10_000
ASK_TIMEOUT_MS = 5_000


def ttl_ms(ttl: float | timedelta) -> int:
    """Return a time to live, in seconds, as milliseconds.

    Raises:
        InvalidArgument: it is none.
    """
    seconds = ttl.total_seconds() if isinstance(ttl, timedelta) else ttl
    numeric = isinstance(seconds, int | float) and not isinstance(ttl, bool)
    if not numeric or not 0 < seconds <= MAX_S:
        raise InvalidArgument(f"ttl={ttl!r}: more than 0 and at most {MAX_S} seconds")
    return int(seconds * 1000) or 1


class Holding:
    """One hold. Runs on the client's loop.

    Args:
        env: the environment: clock, tasks, files, calls.
        locations: finds the tablets.
        table: the open table.
        at: hybrid time that stays readable.
        ttl_ms: how long, from now.
        name: beginning of its name.
        lasting: its whole name instead; it then lasts as long as this client, and `ttl_ms` longer. Another
            client may continue it, so that one which cannot begin is left to expire.

    Attributes:
        at: hybrid time that stays readable.
        name: name of the hold, in the status of its tablets.
    """

    def __init__(
        self, env: Env, locations: TabletCache, table: OpenTable, at: int, ttl_ms: int, *, name: str = "",
        lasting: str = "",
    ) -> None:  # fmt: skip
        self.at = at
        self.name = lasting or name + random_id(env.random)
        self._is_lasting = bool(lasting)
        self._ttl_us = ttl_ms * 1000
        self._env = env
        self._locations = locations
        self._table = table
        self._ends_us = env.clock.monotonic_us() + ttl_ms * 1000
        self._task: asyncio.Task[object] | None = None

    def left_ms(self) -> int:
        """Return the milliseconds until the hold expires."""
        return max(0, (self._ends_us - self._env.clock.monotonic_us()) // 1000)

    async def begin(self, timeout_ms: int) -> None:
        """Acquire the hold, and renew it in the background until it ends.

        Raises:
            HistoryGone: the time cannot be read any more.
            Unavailable: no majority of some tablet's replicas answers.
        """
        try:
            await self._acquire_in_time(timeout_ms)
        except (NyalaError, asyncio.CancelledError):  # nobody has a handle to release it
            if not self._is_lasting:  # an earlier client may have begun it, which it outlasts
                self._env.tasks.spawn(self.release(), f"release of a hold of {self._table.name}")
            raise
        self._start()

    async def _acquire_in_time(self, timeout_ms: int) -> None:
        attempts = Attempts(self._env, timeout_ms)
        known: Retryable | None = None
        while True:
            try:
                with attempts.keeping(known):
                    return await self._acquire(self.left_ms(), attempts.left_ms())
            except Retryable as err:
                known = err
                if not await attempts.pause():
                    raise

    def _start(self) -> None:
        self._task = self._env.tasks.spawn(self._renew(), f"hold of {self._table.name}")

    def move(self, at: int) -> None:
        """Hold a later time instead, for as much longer as it is later; servers learn it at the next renewal.

        So the hold ends if its time falls further behind the clock by more than its time to live, which it
        never exceeds; unless it is lasting.
        """
        if at <= self.at:
            return
        moved_us, self.at = to_micros(at) - to_micros(self.at), at
        now_us = self._env.clock.monotonic_us()
        self._ends_us = min(self._ends_us + moved_us, now_us + self._ttl_us)
        if self._task is not None and self._task.done() and self.left_ms() > RENEW_MS:
            self._start()

    async def release(self) -> None:
        """Release the hold; on servers that do not answer it expires."""
        self._ends_us = 0
        if self._task is not None:
            self._task.cancel()  # and its end awaited: what it was sending comes before the release
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        await self._send(0)

    async def _renew(self) -> None:
        pause_ms = min(RENEW_MS, self._ttl_us // 3000) if self._is_lasting else RENEW_MS
        while self._is_lasting or self.left_ms() > pause_ms:
            await self._env.tasks.sleep_ms(max(1, pause_ms))
            if self._is_lasting:
                self._ends_us = self._env.clock.monotonic_us() + self._ttl_us
            try:
                await self._acquire(self.left_ms(), 2 * ASK_TIMEOUT_MS)
            except NyalaError:
                continue  # servers that have it keep it until it expires

    async def _acquire(self, ttl_ms: int, timeout_ms: int) -> None:
        """Request the hold from all replicas; a majority of each tablet's voters has to keep it."""
        attempts = Attempts(self._env, timeout_ms)
        await self._locations.refresh_shared(self._table, _ask_ms(attempts))
        kept, errors = await self._send(max(1, ttl_ms), _ask_ms(attempts))
        for tablet in self._table.with_rows(self.at):
            voters = tablet.majority_of()
            if 2 * len(kept.get(tablet.id, set()).intersection(voters)) > len(voters):
                continue
            history_errors = [e for e in errors.get(tablet.id, ()) if isinstance(e, HistoryGone)]
            if history_errors:
                raise history_errors[0]
            raise Unavailable(
                f"no majority of the voters of tablet {tablet.id} keeps the time {self.at}: "
                + "; ".join(e.message for e in errors.get(tablet.id, ()))
            )

    async def _send(
        self, ttl_ms: int, timeout_ms: int = ASK_TIMEOUT_MS
    ) -> tuple[dict[str, set[str]], dict[str, list[NyalaError]]]:
        """Send the hold to every server; return the servers that keep it, and errors, by tablet."""
        by_address: dict[str, list[str]] = {}
        for tablet in self._table.with_rows(self.at):
            for _, address in tablet.replicas:
                if address:
                    by_address.setdefault(address, []).append(tablet.id)
        kept: dict[str, set[str]] = {}
        errors: dict[str, list[NyalaError]] = {}

        async def send(address: str, tablets: list[str]) -> None:
            request = pb.HoldHistoryRequest(
                tablet_ids=tablets, name=self.name, at=self.at, ttl_ms=ttl_ms
            )
            try:
                answer: pb.HoldHistoryResponse = await self._env.rpc.call(
                    address, methods.HOLD_HISTORY, request, timeout_ms=timeout_ms
                )
            except NyalaError as err:
                for tablet in tablets:
                    errors.setdefault(tablet, []).append(err)
                return
            for result in answer.results:
                if result.HasField("error"):
                    errors.setdefault(result.tablet_id, []).append(status.from_proto(result.error))
                else:
                    kept.setdefault(result.tablet_id, set()).add(address)

        await asyncio.gather(*(send(a, t) for a, t in by_address.items()))
        return kept, errors


def _ask_ms(attempts: Attempts) -> int:
    return max(1, min(ASK_TIMEOUT_MS, attempts.left_ms()))


class HeldTime:
    """A hold that has begun, without its release.

    Args:
        holding: the hold, begun.
    """

    kind: ClassVar[str]
    """Name of the class in `repr`."""

    def __init__(self, holding: Holding) -> None:
        self._holding = holding

    @property
    def at(self) -> int:
        """The hybrid time from which on all times stay readable."""
        return self._holding.at

    @property
    def name(self) -> str:
        """The hold's name in the status of its tablets."""
        return self._holding.name

    @property
    def left_s(self) -> float:
        """Seconds until the hold expires."""
        return self._holding.left_ms() / 1000

    def __repr__(self) -> str:
        return f"<{self.kind} at {self.at}, {self.left_s:.0f} s left>"


class Hold(HeldTime):
    """A snapshot of a table that stays readable. Made by `Table.hold`; a context manager.

    Args:
        holding: the hold, begun.
        release: releases it, from any thread.
    """

    kind = "nyala.Hold"

    def __init__(self, holding: Holding, release: Callable[[], None]) -> None:
        super().__init__(holding)
        self._release = release

    def release(self) -> None:
        """Release the hold; a second call does nothing."""
        if self._holding.left_ms():
            self._release()

    def __enter__(self) -> "Hold":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()
