"""Replicas made and deleted in a running process, one step at a time for each group."""

from nyala.common.errors import AlreadyPresent, InvalidArgument, NotFound, Unavailable
from nyala.common.ids import TabletId
from nyala.raft.membership import Configuration
from nyala.replica import lifecycle
from nyala.replica.context import Around
from nyala.replica.lifecycle import CreateMachine
from nyala.replica.member.bootstrap import Opened
from nyala.replica.multiraft.event_loop import Turns
from nyala.replica.replica import Replica
from nyala.replica.state_machine import Cut
from nyala.replica.witness import Witness

_BEGINNING = Cut()


class Making:
    """Makes and deletes replicas. On the loop only.

    Args:
        around: the process.
        turns: looks at those that are made.
        replicas: all of them, by group.
    """

    def __init__(self, around: Around, turns: Turns, replicas: dict[TabletId, Replica]) -> None:
        self._around = around
        self._turns = turns
        self._replicas = replicas
        self._busy: dict[TabletId, None] = {}  # being created, copied or deleted
        self._closed = False

    def get(self, group: TabletId) -> Replica:
        """Return the replica of a group, whatever its state.

        Raises:
            NotFound: this server has none, and remembers none.
        """
        if group not in self._replicas:
            raise NotFound(f"this server has no replica of tablet {group}")
        return self._replicas[group]

    async def create_replica(
        self, group: TabletId, config: Configuration, create_machine: CreateMachine
    ) -> Replica:
        """Make a new replica, durable on return; it takes part at once.

        Args:
            group: id of the tablet.
            config: the group's first configuration.
            create_machine: see `CreateMachine`.

        Raises:
            AlreadyPresent: the group has a replica here, or had one (tombstone).
            InvalidArgument: this server is not in `config`, or a witness.
            Unavailable: being created or deleted, or the server stops.
            OSError: the disk failed or is full, nothing was made.
        """
        me = config.get(self._around.uuid)
        if me is None:
            raise InvalidArgument(f"this server is not in the configuration of {group}")
        if not me.electable:
            raise InvalidArgument(f"this server is a witness of {group}: create_witness makes it")
        return await self._create(group, config, create_machine)

    async def create_witness(
        self, group: TabletId, config: Configuration, start: Cut = _BEGINNING
    ) -> Replica:
        """Make a new witness: a replica with a log and without data; as `create_replica`.

        Args:
            group: id of the tablet.
            config: in which this server is not electable; as of `start`, or a group's first.
            start: an entry of the group and its stamp: the witness' log begins after it. What the group
                has before is never sent here, so a copy of the data has to reach at least so far.
        """
        me = config.get(self._around.uuid)
        if me is None or me.electable:
            raise InvalidArgument(f"this server is no witness in the configuration of {group}")
        if config.id.index > start.op.index:
            raise InvalidArgument(
                f"the configuration of {config.id} lies after {start.op}, where the log is to begin"
            )
        files = self._around.env.files
        return await self._create(group, config, lambda path: Witness.create(files, path, start))

    async def _create(
        self, group: TabletId, config: Configuration, create_machine: CreateMachine
    ) -> Replica:
        if group in self._replicas:
            raise AlreadyPresent(f"{group} has a replica here: {self._replicas[group].state}")
        self._reserve(group)
        try:
            opened = await lifecycle.create(self._around, group, config, create_machine)
        finally:
            del self._busy[group]
        return self._begin(group, opened)

    def _begin(self, group: TabletId, opened: Opened) -> Replica:
        replica = Replica(self._around, group)
        self._replicas[group] = replica
        replica.take_part(opened)
        self._turns.mark(group)
        self._around.changed(group)
        return replica

    def _free(self, group: TabletId) -> None:
        del self._busy[group]

    async def delete_replica(self, group: TabletId) -> None:
        """Delete a replica's data and log; its vote and last op id stay (tombstone). Durable on return.

        Writes in flight end with OutcomeUnknown. Done before: no error.

        Raises:
            NotFound: there is none. Unavailable: being created or deleted, or the server stops.
            OSError: the disk failed; see `lifecycle.delete`.
        """
        replica = self.get(group)
        self._reserve(group)
        try:
            await lifecycle.delete(self._around, replica)
        finally:
            del self._busy[group]

    def _reserve(self, group: TabletId) -> None:
        if self._closed:
            raise Unavailable("this server is stopping; ask another one")
        if self._around.wal.failed is not None:
            raise Unavailable(
                f"this server's log is broken: {self._around.wal.failed}; replace the disk"
            )
        if group in self._busy:
            raise Unavailable(f"{group} is being created, copied or deleted here; ask again")
        self._busy[group] = None
