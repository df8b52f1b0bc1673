"""A bank whose accounts are rows of a table: transfers are transactions, and the total never changes.

A transfer is blind: it writes the balances that its client read before. Each client therefore has accounts
of its own, and moves money between two of them, in different tablets; the total of a client's accounts is the
same in every scan at any time. Some transfers delete all accounts of the client by a condition and write them
again.
"""

import contextlib
import random
from collections.abc import Sequence

from nyala.client.cluster.tablet_cache import OpenTable
from nyala.client.core import ClientCore
from nyala.client.read.read_spec import ReadSpec
from nyala.client.transactions.keys import options_of
from nyala.client.transactions.outcome import Committed
from nyala.client.transactions.staged_parts import OWN_PART, StagedParts
from nyala.client.transactions.staged_writes import stage_delete
from nyala.common.errors import NyalaError, OutcomeUnknown
from nyala.wire.proto import nyala_pb2 as pb
from tests.sim.systems.table_client import rows_of

START = 100
ACCOUNTS = 6


class Teller:
    """A client that transfers money between its own accounts.

    Args:
        core: the client.
        table: of accounts.
        number: its accounts begin at 10 times this number.
        rng: of its choices.

    Attributes:
        committed: number of transfers that were acknowledged.
        denied: number of those that were refused for good.
        unknown: number of those without an answer.
    """

    def __init__(self, core: ClientCore, table: OpenTable, number: int, rng: random.Random) -> None:
        self.core, self.table, self.rng = core, table, rng
        self.accounts = [10 * number + n for n in range(ACCOUNTS)]
        self.balances = dict.fromkeys(self.accounts, START)
        self.committed = self.denied = self.unknown = 0
        self.last_time = self.number = 0
        self.stopped = False

    async def open_accounts(self) -> None:
        """Write the first balances, in one transaction."""
        await commit(self.core, self.table, self.balances)

    async def transfer(self) -> None:
        """Move money between two accounts; what has no known outcome is committed again, with its key."""
        source, target = self.rng.sample(self.accounts, 2)
        amount = self.rng.randrange(1, 20)
        changed = {
            source: self.balances[source] - amount,
            target: self.balances[target] + amount,
        }
        replaced = ""
        if self.rng.random() < 0.3:
            changed = self.balances | changed
            replaced = f"k >= {self.accounts[0]} and k <= {self.accounts[-1]}"
        self.number += 1
        key, unknown = f"teller {self.accounts[0]} {self.number}", False
        while True:
            try:
                done = await commit(self.core, self.table, changed, key, replaced)
            except OutcomeUnknown:
                self.unknown += 1
                unknown = True
            except NyalaError:
                self.denied += 1  # denied, aborted in time, or nothing was staged
                if not unknown:
                    return
            else:
                assert done.at > self.last_time or done.before, "commit times of one client rise"
                self.last_time = max(self.last_time, done.at)
                self.committed += 1
                self.balances.update(changed)
                return
            await self.core.env.tasks.sleep_ms(200)

    async def run(self, transfers: int) -> None:
        """Make transfers."""
        for _ in range(transfers):
            if self.stopped:
                return
            await self.transfer()
            await self.core.env.tasks.sleep_ms(self.rng.randrange(50))


async def stage(
    core: ClientCore,
    table: OpenTable,
    rows: dict[int, int],
    key: str | None = None,
    where: str = "",
) -> StagedParts:
    """Begin a transaction and stage rows, after a delete of those that a condition selects."""
    given = options_of({"key": key})
    parts = StagedParts(core, key=given.key)
    await parts.begin(600)
    try:
        part = parts.part(OWN_PART)
        if where:
            await stage_delete(core, table, where, part)
        upload = await part.begin(table, pb.UPSERT, all_or_nothing=False, timeout_ms=20_000)
        await upload.take(rows_of(list(rows), list(rows.values())))
        written = await upload.finish()
        assert not written.errors, written.errors
        assert written.rows == len(rows)
    except BaseException:
        parts.end("failed")
        raise
    return parts


async def commit(
    core: ClientCore,
    table: OpenTable,
    rows: dict[int, int],
    key: str | None = None,
    where: str = "",
) -> Committed:
    """Write rows in a transaction, after a delete of those that a condition selects."""
    parts = await stage(core, table, rows, key, where)
    try:
        return await parts.coordination.commit(parts.named())
    finally:
        parts.end("over")


async def balances(
    core: ClientCore, table: OpenTable, accounts: Sequence[int], at: int | None = None
) -> dict[int, int]:
    """Return the balances of accounts in one snapshot."""
    plan = core.plan(table, ReadSpec(at=at or 0))
    found = [r for some in await plan.collect() for batch in some for r in batch.to_pylist()]
    return {r["k"]: r["v"] for r in found if r["k"] in accounts}


class Auditor:
    """A client that reads snapshots and checks the totals of all tellers.

    Attributes:
        snapshots: number of snapshots that were read.
    """

    def __init__(self, core: ClientCore, table: OpenTable, tellers: Sequence[Teller]) -> None:
        self.core, self.table, self.tellers = core, table, tellers
        self.snapshots = 0
        self.stopped = False

    async def check(self, at: int | None = None) -> None:
        """Read one snapshot.

        Raises:
            AssertionError: the total of a teller differs: a part of a transfer is visible, or missing.
            NyalaError: it could not be read.
        """
        accounts = [a for t in self.tellers for a in t.accounts]
        found = await balances(self.core, self.table, accounts, at)
        self.snapshots += 1
        for teller in self.tellers:
            own = {a: found.get(a) for a in teller.accounts}
            present = [v for v in own.values() if v is not None]
            assert len(present) in (0, ACCOUNTS), f"a part of the accounts is there: {own} at {at}"
            assert sum(present) in (0, ACCOUNTS * START), (
                f"money appeared or vanished: {own} at {at}"
            )

    async def run(self) -> None:
        """Read present snapshots until stopped."""
        while not self.stopped:
            with contextlib.suppress(NyalaError):
                await self.check()
            await self.core.env.tasks.sleep_ms(100)
