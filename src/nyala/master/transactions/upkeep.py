"""Removal of decisions and keys that are old enough, and the marks of the decisions. Rule F.

`settled` and `removed` are computed when the removal is planned: no other operation of this leader can be
planned with an earlier commit time afterwards, and those that are proposed and not applied are counted.
"""

import logging

from nyala.common.errors import NyalaError
from nyala.common.hybrid_time import from_micros
from nyala.common.options import Options
from nyala.env.env import Env
from nyala.master.catalog.catalog import Catalog
from nyala.master.catalog.detached import detached
from nyala.master.catalog.plan import CatalogPlan, Scope
from nyala.master.catalog.records.parsing import parse_key
from nyala.master.ddl import operation
from nyala.master.ddl.operation import CatalogOperation, LeaderMemory
from nyala.master.transactions.attempts import TransactionAttempts
from nyala.master.transactions.commits import CommitClock
from nyala.master.transactions.denials import CatalogReader
from nyala.master.transactions.resolver import Resolver
from nyala.wire.proto import catalog_pb2 as cat

log = logging.getLogger(__name__)

INTERVAL_MS = 1_000
ROWS_AT_A_TIME = 1_000
"""Maximum number of rows that one operation removes, and of keys that are read at a time."""
KEY_ROUNDS = 60
"""Number of rounds after which some keys are examined."""
DAY_US = 86_400_000_000


class DecisionUpkeep:
    """DecisionUpkeep of the decisions of one leader in one term. On the loop only.

    Args:
        env: tasks.
        memory: memory of the term.
        rows: the sys catalog.
        attempts: attempts of the term.
        resolver: knows which decisions are resolved.
        clock: hybrid clock of this master.
        options: options of this master.
    """

    def __init__(
        self,
        env: Env,
        memory: LeaderMemory,
        rows: CatalogReader,
        attempts: TransactionAttempts,
        resolver: Resolver,
        clock: CommitClock,
        options: Options,
    ) -> None:
        self._env = env
        self._memory = memory
        self._rows = rows
        self._attempts = attempts
        self._resolver = resolver
        self._clock = clock
        self._ttl = from_micros(options.client_result_ttl_s * 1_000_000)
        self._key_age = from_micros(options.job_ledger_days * DAY_US)
        self._key = ""  # the last key that was examined

    async def run(self) -> None:
        """Do what is due at each interval, until the term ends."""
        rounds = 0
        while self._memory.dropped is None:
            await self._env.tasks.sleep_ms(INTERVAL_MS)
            try:
                await self.remove_decisions()
                rounds += 1
                if rounds % KEY_ROUNDS == 0:
                    await self.remove_keys()
            except NyalaError as err:
                log.info("decisions were not removed: %s; tried again", err)
            except Exception as bug:  # the task's top: without it the catalog grows
                log.error("decisions were not removed", exc_info=bug)

    async def remove_decisions(self) -> None:
        """Remove the decisions that are old enough, and raise the marks.

        Raises:
            NyalaError: this master stops leading, or cannot write.
        """
        if self._plan(self._memory.catalog).writes:
            wanted = CatalogOperation("remove decisions", lambda _: Scope(), self._plan)
            plan = await detached(self._env, operation.run(wanted, self._memory))
            for transaction in plan.removed:
                self._resolver.forget(transaction)

    def _plan(self, catalog: Catalog) -> CatalogPlan:
        """Return the plan that removes what is due; it writes nothing if nothing is, and no mark rises."""
        decisions, until = catalog.decisions, self._clock.now()
        old = self._old(catalog, until)
        coming = [t for t in (self._attempts.earliest_decision(),) if t is not None]
        unresolved = [t for t in (self._resolver.earliest(),) if t is not None]
        marks = cat.DecisionMarks()
        marks.CopyFrom(decisions.marks)
        marks.resolved = max(marks.resolved, min([*unresolved, *coming, until]) - 1)
        ended = [t for t, at in decisions.aborted.items() if at + self._key_age < until]
        ended = ended[:ROWS_AT_A_TIME]
        if not old and not ended and not _gained(catalog, marks.resolved):
            return CatalogPlan()
        if old:
            left = [t for t in (decisions.earliest(old),) if t is not None]
            marks.settled = max(marks.settled, min([*coming, until, *left]) - 1)
            marks.removed = max(marks.removed, *(decisions.rows[t].at for t in old))
        if ended:
            marks.removed = max(marks.removed, *(decisions.aborted[t] for t in ended))
        return CatalogPlan(removed=(*old, *ended), marks=marks)

    def _old(self, catalog: Catalog, until: int) -> dict[bytes, None]:
        """Return resolved decisions of which no client asks any more, about the oldest ones first."""
        found: dict[bytes, None] = {}
        for transaction, row in catalog.decisions.rows.items():
            if row.at + self._ttl >= until or len(found) == ROWS_AT_A_TIME:
                break  # the others became known later
            if self._resolver.is_resolved(transaction):
                found[transaction] = None
        return found

    async def remove_keys(self) -> None:
        """Examine some keys, and remove those of jobs that are older than they are kept; raises as above."""
        found = await self._rows.keys(self._key, ROWS_AT_A_TIME)
        self._key = found[-1].id if len(found) == ROWS_AT_A_TIME else ""
        until = self._clock.now() - self._key_age
        old = [k for k in map(parse_key, found) if not k.key.query and k.at < until]
        held = self._memory.catalog.decisions.of_key
        old = [k for k in old if not held(k.key.name)]
        if not old:
            return

        def plan(catalog: Catalog) -> CatalogPlan:
            marks = cat.DecisionMarks()
            marks.CopyFrom(catalog.decisions.marks)
            marks.keys_removed = max(marks.keys_removed, *(k.at for k in old))
            return CatalogPlan(removed_keys=tuple(k.key.name for k in old), marks=marks)

        wanted = CatalogOperation("remove keys of jobs", lambda _: Scope(), plan)
        await detached(self._env, operation.run(wanted, self._memory))


def _gained(catalog: Catalog, resolved: int) -> bool:
    """Return whether a higher mark `resolved` spares the next leader the resolves of some decision."""
    decisions = catalog.decisions
    before = decisions.marks.resolved
    if decisions.latest <= before:
        return False
    return any(before < r.at <= resolved for r in reversed(decisions.rows.values()))
