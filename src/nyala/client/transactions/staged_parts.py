"""The parts of one transaction in one process, and the task that keeps their stages alive."""

import asyncio
from collections.abc import Iterable

from nyala.client.cluster.tablet_cache import OpenTable
from nyala.client.core import ClientCore
from nyala.client.transactions.coordination import TransactionCalls
from nyala.client.write.staging import PartStage, StagedPart, StagedTablet
from nyala.common.errors import InvalidArgument, NyalaError, TransactionDenied
from nyala.env.clock import random_id
from nyala.wire.proto import transactions_pb2 as txn

MAX_PART_NAME = 128
KEEP_SHARE = 3
"""Share of the time-out of stages, as a divisor, after which they are kept alive again."""
OWN_PART = "-"
"""Name of the part that writes with the transaction itself stage into."""


class StagedParts:
    """A transaction as one process stages it. On the client's loop only.

    Args:
        core: the client.
        transaction: id of the transaction; None: a new one.
        key: that takes effect once; None: it has none.

    Attributes:
        transaction: its id.
        coordination: its requests to masters and tablets.
    """

    def __init__(
        self, core: ClientCore, transaction: bytes | None = None, key: txn.TxnKey | None = None
    ) -> None:
        self._core = core
        self.transaction = transaction or bytes.fromhex(random_id(core.env.random))
        self.coordination = TransactionCalls(core, self.transaction, key)
        self._parts: dict[str, PartStage] = {}
        self._included: dict[str, StagedPart] = {}
        self._covered: dict[str, OpenTable] = {}
        self._keeping: asyncio.Task[object] | None = None
        self._expired = ""
        self._ended = ""

    async def begin(self, timeout_s: float) -> None:
        """Check that the cluster has transactions, and keep the stages alive from now on.

        Args:
            timeout_s: time after which they are not kept alive any more.

        Raises:
            Forbidden, InvalidArgument: it has none. TimedOut: no master led in time.
        """
        stage_s = await self.coordination.ready()
        if self._ended:  # meanwhile
            return
        work = self._keep(stage_s, timeout_s)
        self._keeping = self._core.env.tasks.spawn(work, "keep a transaction alive")

    def part(self, name: str) -> PartStage:
        """Return the part with a name, a new one if there is none.

        Raises:
            InvalidArgument: the name is no name of a part, or another process has staged it.
        """
        if (
            not isinstance(name, str)
            or not 1 <= len(name) <= MAX_PART_NAME
            or name in self._included
        ):
            raise InvalidArgument(
                f"a part cannot be named {name!r}: use text of 1 to {MAX_PART_NAME} characters, another one "
                "for each attempt of a task"
            )
        if name not in self._parts:
            made = self._parts[name] = PartStage(self._core.session.staging, self.transaction, name)
            if self._ended:
                made.close(self._ended)
        return self._parts[name]

    def include(self, part: StagedPart) -> None:
        """Add a part that another process has staged, after those before it in the order of effect.

        Raises:
            InvalidArgument: a part of this name is included, or is staged here.
        """
        if not isinstance(part, StagedPart):
            raise InvalidArgument(
                f"{part!r} is a {type(part).__name__}; pass what staged() of a part returns"
            )
        if part.name in self._included or part.name in self._parts:
            raise InvalidArgument(
                f"the transaction has a part {part.name!r} already; include one attempt of each task"
            )
        self._included[part.name] = part

    async def cover(self, table_id: str) -> None:
        """Keep the stages alive in all tablets of a table, which other processes may stage into."""
        core = self._core
        self.keep_all(await core.locations.open("", core.options.timeout_ms, table_id=table_id))

    def keep_all(self, table: OpenTable) -> None:
        """Keep the stages alive in all tablets of a table as it is known to the client."""
        self._covered[table.id] = table

    def named(self) -> list[StagedPart]:
        """Return what a commit names: the parts staged here, then those included, in their orders.

        Raises:
            TransactionDenied: some row was refused, or some stage has expired.
            InvalidArgument: rows are still being staged.
        """
        if self._expired:
            raise TransactionDenied(self._expired)
        return [*(p.staged() for p in self._parts.values()), *self._included.values()]

    def known(self) -> list[StagedPart]:
        """Return what is known to be staged, for an end without a commit."""
        return [*(_whatever(p) for p in self._parts.values()), *self._included.values()]

    def end(self, why: str) -> None:
        """Refuse further rows, and keep nothing alive any more."""
        self._ended = why
        for part in self._parts.values():
            part.close(why)
        if self._keeping is not None:
            self._keeping.cancel()

    async def drop(self) -> None:
        """Free all stages that are known, and those in the tables that are covered."""
        known = self._tablets()
        await self.coordination.drop([*known, *self._others(known)])

    def _tablets(self) -> list[StagedTablet]:
        """Return the tablets with stages, as far as they are known here."""
        found = {t.tablet_id: t for p in self.known() for t in p.tablets}
        for part in self._parts.values():
            for tablet, at in part.locations().items():  # the newest addresses
                found[tablet] = StagedTablet(tablet, "", 0, 0, tuple(at.addresses()))
        return list(found.values())

    async def _keep(self, stage_s: int, timeout_s: float) -> None:
        """Keep the stages alive until the time of the transaction is over."""
        clock, tasks = self._core.env.clock, self._core.env.tasks
        end_us = clock.monotonic_us() + int(timeout_s * 1_000_000)
        pause_ms = max(1, stage_s * 1000 // KEEP_SHARE)
        while (left_ms := (end_us - clock.monotonic_us()) // 1000) > 0:
            await tasks.sleep_ms(min(pause_ms, left_ms))
            staged = self._tablets()
            gone = set(await self.coordination.keep(staged))
            if lost := [t.tablet_id for t in staged if t.tablet_id in gone]:
                self._expired = (
                    f"the stage of transaction {self.transaction.hex()} in tablet {lost[0]} has expired or "
                    "was dropped; write its rows again in another transaction"
                )
            await self.coordination.keep(self._others(staged))
        self._expired = (
            f"transaction {self.transaction.hex()} was open for longer than timeout_s={timeout_s:g}; give a "
            "longer time, or commit earlier"
        )
        self.end(self._expired)

    def _others(self, staged: Iterable[StagedTablet]) -> list[StagedTablet]:
        """Return the tablets of the covered tables that are not known to have a stage."""
        known = {t.tablet_id for t in staged}
        return [
            StagedTablet(t.id, table.id, 0, 0, tuple(t.addresses()))
            for table in self._covered.values()
            for t in table.tablets
            if t.id not in known
        ]


def _whatever(part: PartStage) -> StagedPart:
    """Return the tablets of a part, also of one that cannot be committed."""
    try:
        return part.staged()
    except NyalaError:
        tablets = (
            StagedTablet(t, "", 0, 0, tuple(at.addresses())) for t, at in part.locations().items()
        )
        return StagedPart(part.name, tuple(tablets), since=part.since)
