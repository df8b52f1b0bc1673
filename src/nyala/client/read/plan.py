"""Plan of a read, which is made again when the ranges of its table change.

A plan has the version of the ranges that it was made from. A tablet that had newer ranges at the time of the
read refuses its token (RANGES_CHANGED), and an added range takes no writes before all tablets of the table
have the new version. So tokens that servers accept are complete, even if this client's ranges were old: see
"Ranges and reads" in docs/internals/master.md. A plan without tokens, or with tokens
that run in another process, is checked by a probe of one tablet first.

Several runs may be under way at once, of several threads. They read one snapshot: the time of the first run
that delivers rows or its time to its caller. A run at another time has delivered nothing, and is repeated.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

import pyarrow as pa

from nyala.client.cluster.tablet_cache import OpenTable, TabletCache
from nyala.client.deadline import Attempts
from nyala.client.read.progress import OnHeader
from nyala.client.read.read_spec import ReadSpec
from nyala.client.read.token_reader import Reader
from nyala.common.errors import HistoryGone, RangesChanged
from nyala.env.env import Env
from nyala.wire.proto import nyala_pb2 as pb

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PlannedTokens:
    """Tokens of a read at one time.

    Attributes:
        at: hybrid time of the read; 0: each leader's own.
        tokens: one for each tablet that is read.
    """

    at: int
    tokens: list[pb.ScanToken]


class ReadPlan:
    """The plan of one read, whose runs all read the same snapshot. Runs on the client's loop, but for `fix`.

    Args:
        env: clock and pauses.
        reader: makes and runs tokens.
        locations: looks ranges up.
        table: that is read.
        spec: what of it.
        timeout_ms: deadline of planning, and of each token.

    Attributes:
        at: hybrid time of the read; 0: not chosen yet, or each leader's own.
        is_fixed: the time does not change any more, since the caller has it or rows read at it.
        planned: the tokens of the newest ranges known; None: not made yet.
    """

    def __init__(
        self, env: Env, reader: Reader, locations: TabletCache, table: OpenTable, spec: ReadSpec,
        timeout_ms: int,
    ) -> None:  # fmt: skip
        self._env = env
        self._reader = reader
        self._locations = locations
        self._table = table
        self._spec = spec
        self._timeout_ms = timeout_ms
        self.is_fixed = bool(spec.at)
        self.at = spec.at
        self.planned: PlannedTokens | None = None
        self._making = asyncio.Lock()  # one time is chosen, also for concurrent first runs
        self._fixing = threading.Lock()

    def fix(self, at: int) -> bool:
        """Fix the time of the read, unless it is fixed. Any thread.

        Args:
            at: time of the run whose rows, or time, the caller is about to get.

        Returns:
            True if it is the time of the read; otherwise the run has to be repeated at the time of the read.
        """
        with self._fixing:
            if not self.is_fixed:
                self.at, self.is_fixed = at, True
            return self.at == at

    async def make_tokens(self) -> PlannedTokens:
        """Return the tokens, making them if needed; none if no range of the table matches."""
        attempts = self.attempts()
        while True:
            try:
                return await self._make()
            except RangesChanged:
                await self.changed(attempts)

    async def verified(self) -> list[pb.ScanToken]:
        """Return tokens that other processes may run, and fix the time of the read."""

        async def probe(planned: PlannedTokens) -> list[pb.ScanToken]:
            if planned.tokens:  # otherwise it was asked already
                await self._probe(planned.at)
            return planned.tokens

        return await self._run(probe)

    async def collect(
        self, on_header: OnHeader | None = None, *, count_only: bool = False
    ) -> list[list[pa.RecordBatch]]:
        """Run the read to its end, and fix its time.

        Args:
            on_header: called with the header of each server's response.
            count_only: read the number of rows only.

        Returns:
            The batches of each token.
        """

        async def read(planned: PlannedTokens) -> list[list[pa.RecordBatch]]:
            tokens = planned.tokens
            if count_only:
                tokens = [counting(t) for t in tokens]
            return await self._reader.collect_all(tokens, on_header)

        return await self._run(read)

    def attempts(self) -> Attempts:
        """Return the deadline of one run, for `changed`."""
        return Attempts(self._env, self._timeout_ms)

    async def changed(self, attempts: Attempts) -> None:
        """Look up the ranges after they have changed; drop the tokens, and the time unless it is fixed.

        Raises:
            RangesChanged: they changed at every try until the deadline.
            NotFound: the table is gone.
        """
        known = RangesChanged(
            f"the ranges of table {self._table.name!r} changed at every try for {self._timeout_ms} ms; "
            "read again when its alterations are over; check: nyala cluster ksck"
        )
        if not await attempts.pause():
            raise known
        with attempts.keeping(known):
            left_ms = max(1, attempts.left_ms())
            await self._locations.refresh(self._table, left_ms, by_leader=True)
        self.planned = None
        self._choose(0)

    def _choose(self, at: int) -> None:
        with self._fixing:
            if not self.is_fixed:
                self.at = at

    async def _make(self) -> PlannedTokens:
        async with self._making:
            planned = self.planned
            if planned is None or planned.at != self.at:
                reader, table, spec, timeout_ms = (
                    self._reader, self._table, self._spec, self._timeout_ms,
                )  # fmt: skip
                at = self.at or await reader.time_for(table, spec, timeout_ms)
                tokens = reader.tokens_at(table, spec, at, timeout_ms)
                if not tokens:
                    await self._probe(at)
                planned = self.planned = PlannedTokens(at, tokens)
                self._choose(at)
            return planned

    async def _probe(self, at: int) -> None:
        try:
            await self._reader.probe(self._table, at, self._timeout_ms)
        except HistoryGone:
            return  # the tokens' servers raise it, if there are tokens

    async def _run(self, work: Callable[[PlannedTokens], Awaitable[T]]) -> T:
        """Return what `work` makes of the tokens, and fix the time; repeat it if ranges or time changed."""
        attempts = self.attempts()
        while True:
            try:
                planned = await self._make()
                found = await work(planned)
            except RangesChanged:
                await self.changed(attempts)
                continue
            if self.fix(planned.at):
                return found


def counting(token: pb.ScanToken) -> pb.ScanToken:
    """Return a token that gives the number of rows of another one, counted at the server."""
    same = pb.ScanToken()
    same.CopyFrom(token)
    same.count_only = True
    return same
