"""Expiry of stages: a transaction that its client no longer keeps is dropped, unless it is prepared.

Ages are differences of stamps of the tablet's own entries to the leader's hybrid clock. The DROP names the
age that was seen, so it has no effect on a stage that was kept meanwhile.
"""

import logging

from nyala.common.errors import NyalaError
from nyala.common.hybrid_time import from_micros
from nyala.common.options import Options
from nyala.env.env import Env
from nyala.env.tasks import Lane
from nyala.machines import registry
from nyala.replica.replica import Replica
from nyala.tablet.files.transaction_ops import MAX_REFUSE_S, DropOp, encode
from nyala.tablet.tablet import Tablet
from nyala.tserver.tablets import Tablets

log = logging.getLogger(__name__)

CHECK_INTERVAL_MS = 1_000
DROP_TIMEOUT_MS = 5_000


class StageExpiry:
    """Drops the stages of the tablets that this server leads once their time is over. On the event loop only.

    Args:
        env: tasks.
        tablets: tablets of this server.
        options: how long a stage is kept, and for how long its transaction is refused afterwards.
    """

    def __init__(self, env: Env, tablets: Tablets, options: Options) -> None:
        self._env = env
        self._tablets = tablets
        self._timeout = from_micros(options.txn_timeout_s * 1_000_000)
        self._refuse_s = min(options.client_result_ttl_s, MAX_REFUSE_S)

    def start(self) -> None:
        """Start checking."""
        self._env.tasks.spawn(self._run(), "expiry of stages")

    async def _run(self) -> None:
        while True:
            await self._env.tasks.sleep_ms(CHECK_INTERVAL_MS)
            for replica in self._tablets.host.all():
                if not replica.is_leader:
                    continue
                try:
                    await self.expire(replica)
                except NyalaError as err:  # it leads no longer, or was deleted: tried again
                    log.debug("stages of tablet %s did not expire: %s", replica.group, err)
                except Exception as bug:  # an error of one tablet does not affect the others
                    log.error("stages of tablet %s did not expire", replica.group, exc_info=bug)

    async def expire(self, replica: Replica) -> None:
        """Propose a DROP of each stage of a tablet whose time is over.

        Raises:
            NyalaError: as `TransactionRequests.propose`.
        """
        tablet = registry.of_class(replica.machine, Tablet)
        if tablet is None or not tablet.stages.stages:
            return
        bound = replica.context.clock.peek() - self._timeout
        for transaction in await self._env.tasks.run_brief(
            Lane.APPLY, tablet.stages.kept_until, bound
        ):
            log.info("transaction %s expired in tablet %s", transaction.hex(), replica.group)
            drop = encode(DropOp(transaction, bound, self._refuse_s))
            await replica.transactions.propose(drop, DROP_TIMEOUT_MS)
