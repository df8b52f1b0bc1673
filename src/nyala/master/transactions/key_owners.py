"""Owners of the keys of transactions: an operator gives a name to another user, or to none."""

from nyala.common.errors import NotFound
from nyala.env.env import Env
from nyala.master.catalog.catalog import Catalog
from nyala.master.catalog.detached import detached
from nyala.master.catalog.locks import Locks
from nyala.master.catalog.plan import CatalogPlan, Scope
from nyala.master.ddl import operation
from nyala.master.ddl.operation import CatalogOperation, LeaderMemory
from nyala.master.transactions.denials import Denials
from nyala.wire.proto import catalog_pb2 as cat


class KeyOwners:
    """Changes of the owners of keys, by one leader in one term. On the loop only.

    Args:
        env: tasks.
        memory: memory of the term.
        denials: reads the rows of keys.
        locks: locks of keys, by name, which commits hold from the look-up of a key to its row.
    """

    def __init__(self, env: Env, memory: LeaderMemory, denials: Denials, locks: Locks) -> None:
        self._env = env
        self._memory = memory
        self._denials = denials
        self._locks = locks

    async def set_owner(self, name: str, owner: str) -> None:
        """Set who may use the name of a key; durable on return. Idempotent.

        Args:
            name: of a job or a stream.
            owner: user; empty: every user may use it, and the next one whose epoch takes effect owns it.

        Raises:
            NotFound: no transaction with this key is known.
            NotLeader, Unavailable, Throttled, TimedOut, OutcomeUnknown: retry.
        """
        async with self._locks.hold(Scope(names=(name,))):
            taken = await self._denials.key(name)
            if taken is None:
                raise NotFound(
                    f"no committed transaction has the key {name!r}, so that nobody owns it; the first user "
                    "of a key owns it"
                )
            record = cat.KeyRecord()
            record.CopyFrom(taken)
            record.owner = owner

            def plan(_: Catalog) -> CatalogPlan:
                return CatalogPlan(keys=(record,))

            wanted = CatalogOperation("set the owner of a key", lambda _: Scope(), plan)
            await detached(self._env, operation.run(wanted, self._memory))
