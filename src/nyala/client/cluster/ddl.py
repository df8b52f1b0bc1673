"""DDL requests of a client: create, alter, drop and recall tables; numbered for exactly-once retries."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from nyala.client.cluster.masters import Masters
from nyala.client.cluster.tablet_cache import OpenTable, TabletCache
from nyala.client.deadline import Attempts, is_cut_short
from nyala.common.errors import NotFound, NotReady, Retryable
from nyala.common.partitioning.partition_spec import Partition, resolve
from nyala.common.schema import Schema
from nyala.env.clock import HybridClock
from nyala.env.env import Env
from nyala.wire import convert, methods
from nyala.wire.proto import nyala_pb2 as pb

T = TypeVar("T")
_KINDS = ("table", "journal")
"""Names of kinds, by `TableSpec.kind`."""


async def describe(
    masters: Masters,
    name: str,
    timeout_ms: int,
    *,
    table_id: str = "",
    max_age_ms: int = 0,
    kind: int = 0,
) -> pb.DescribeTableResponse:
    """Return the description of a table, or of a journal, by name or id.

    Args:
        masters: masters of the cluster.
        name: name of the table.
        timeout_ms: for the answer.
        table_id: id of the table, instead of the name.
        max_age_ms: largest age of an answer of another master than the leader; 0: the leader's only.
        kind: `TableSpec.kind` of what is described.

    Raises:
        NotFound: no such table.
        InvalidArgument: it is of another kind.
    """
    request = pb.DescribeTableRequest(name=name, id=table_id, kind=kind)
    answer: pb.DescribeTableResponse = await masters.look_up(
        methods.DESCRIBE_TABLE, request, max_age_ms=max_age_ms, timeout_ms=timeout_ms
    )
    return answer


class Definitions:
    """DDL operations of one client. Runs on the client's loop."""

    def __init__(
        self, env: Env, masters: Masters, locations: TabletCache, client_id: bytes, timeout_ms: int,
        clock: HybridClock,
    ) -> None:  # fmt: skip
        self._clock = clock
        self._env = env
        self._masters = masters
        self._locations = locations
        self._client_id = client_id
        self._timeout_ms = timeout_ms
        self._sequence = 0

    def _operation(self) -> pb.OperationId:
        self._sequence += 1
        return pb.OperationId(client=self._client_id, sequence=self._sequence)

    async def create_table(
        self, name: str, schema: Schema, partition: Partition | None, replicas: int,
        options: Mapping[str, str], comment: str = "",
    ) -> OpenTable:  # fmt: skip
        """Create a table and wait until all its tablets run.

        Args:
            name: name of the table.
            schema: columns of the table.
            partition: its partitioning; None: one tablet.
            replicas: per tablet, odd; None: the cluster's default.
            options: table options by name.
            comment: free text.

        Raises:
            AlreadyPresent: the name is taken.
            InvalidArgument: the definition is invalid, or there are fewer live servers than replicas.
            NotReady: created, but some tablet did not start in time; the message says how many.
            OutcomeUnknown: it may have been created, or may yet be.
        """
        spec = pb.TableSpec(
            name=name,
            schema=convert.schema_to_proto(schema),
            partition=convert.partition_schema_to_proto(resolve(partition, schema)),
            replicas=replicas,
            options=dict(options),
            comment=comment,
        )
        return await self.create(spec, self._open)

    async def create(self, spec: pb.TableSpec, open_: Callable[[str, int], Awaitable[T]]) -> T:
        """Create a table or a journal, wait until all its tablets run, and open it.

        Args:
            spec: its definition.
            open_: opens it, given its id and the milliseconds left.

        Raises:
            AlreadyPresent, InvalidArgument, NotReady, OutcomeUnknown: as `create_table`.
        """
        attempts = Attempts(self._env, self._timeout_ms)
        request = pb.CreateTableRequest(table=spec, operation=self._operation())
        made = await self._masters.define(
            methods.CREATE_TABLE, request, timeout_ms=max(1, attempts.left_ms())
        )
        done = f"{_KINDS[spec.kind]} {spec.name!r} was created"
        return await self._follow(done, made.table_id, attempts, open_, spec.kind)

    async def existing(
        self, name: str, open_: Callable[[str, int], Awaitable[T]], kind: int = 0
    ) -> T:
        """Wait until all tablets of a table or journal that exists run, and open it.

        Args:
            name: its name.
            open_: opens it, given its id and the milliseconds left.
            kind: its `TableSpec.kind`.

        Raises:
            NotFound: it does not exist.
            InvalidArgument: it is of another kind.
            NotReady: some tablet has not started in time.
        """
        attempts = Attempts(self._env, self._timeout_ms)
        found = await describe(self._masters, name, self._timeout_ms, kind=kind)
        done = f"{_KINDS[kind]} {name!r} exists"
        return await self._follow(done, found.id, attempts, open_, kind, altered=False)

    async def existing_table(self, name: str) -> OpenTable:
        """Wait until all tablets of a table that exists run, and open it; raises as `existing`."""
        return await self.existing(name, self._open)

    async def _open(self, table_id: str, timeout_ms: int) -> OpenTable:
        return await self._locations.open("", timeout_ms, table_id=table_id)

    async def alter_table(self, table: OpenTable, steps: Sequence[pb.AlterStep]) -> OpenTable:
        """Alter a table, all steps or none, and wait until all its tablets follow.

        Returns:
            The table as it is now; the one that was passed stays as it was.

        Raises:
            NotFound, AlreadyPresent, InvalidArgument: nothing was altered.
            NotReady: altered, but some tablet did not follow in time; the message says how many.
            OutcomeUnknown: it may have been altered, or may still be.
        """
        attempts = Attempts(self._env, self._timeout_ms)
        request = pb.AlterTableRequest(
            id=table.id, steps=steps, operation=self._operation(), propagated_time=self._clock.seen
        )
        await self._masters.define(
            methods.ALTER_TABLE, request, timeout_ms=max(1, attempts.left_ms())
        )
        return await self._follow(
            f"table {table.name!r} was altered", table.id, attempts, self._open
        )

    async def _follow(
        self, done: str, table_id: str, attempts: Attempts, open_: Callable[[str, int], Awaitable[T]],
        kind: int = 0, *, altered: bool = True,
    ) -> T:  # fmt: skip
        """Wait until every tablet of a table or journal runs, and open it.

        Args:
            done: what was done, for errors.
            table_id: of the table or journal.
            attempts: deadline.
            open_: opens it, given its id and the milliseconds left.
            kind: its `TableSpec.kind`.
            altered: wait also until every tablet has the present definition.

        Raises:
            NotReady: some tablet did not follow in time; the change stays in effect.
        """
        seen, trouble, answered = "no master has reported its progress", "", False
        while True:
            left_ms = max(1, attempts.left_ms())
            try:
                answer = await describe(self._masters, "", left_ms, table_id=table_id, kind=kind)
                if answer.ready and not (altered and answer.state == "ALTERING"):
                    return await open_(table_id, left_ms)
                seen = (
                    f"only {answer.tablets_running} of {answer.tablets} tablets run yet, and "
                    f"{answer.tablets_altered} follow"
                )
                answered, trouble = True, ""
            except NotFound as err:
                raise NotReady(f"{done}, and was dropped by another caller since") from err
            except Retryable as err:  # also: a tablet's leader is not known yet
                if not (answered or trouble) or not is_cut_short(err, left_ms):
                    trouble = f"; at last: {err.message}"
            if not await attempts.pause():
                raise NotReady(
                    f"{done}, but {seen}{trouble}; watch it with: nyala {_KINDS[kind]} describe, or "
                    "nyala cluster ksck"
                )

    async def drop_table(
        self, name: str, reserve_seconds: int = 0, *, table_id: str = "", kind: int = 0,
        missing_ok: bool = False,
    ) -> None:  # fmt: skip
        """Drop a table or journal, named or else given by id; its name is free on return.

        Args:
            name: name of the table.
            reserve_seconds: time in which it can be recalled; 0: its tablets are deleted at once.
            table_id: instead of the name; also of a dropped table that could be recalled still.
            kind: `TableSpec.kind` of what is dropped.
            missing_ok: do nothing if there is no such table.

        Raises:
            NotFound: no such table, unless `missing_ok`.
            InvalidArgument: it is of another kind.
            OutcomeUnknown: it may have been dropped, or may yet be.
        """
        request = pb.DropTableRequest(
            name=name, id=table_id, reserve_seconds=reserve_seconds, operation=self._operation(),
            kind=kind,
        )  # fmt: skip
        try:
            await self._masters.define(methods.DROP_TABLE, request, timeout_ms=self._timeout_ms)
        except NotFound:
            if not missing_ok:
                raise

    async def recall_table(self, table_id: str, new_name: str = "") -> OpenTable:
        """Recall a table that was dropped with a reserve, under its name or a new one.

        Raises:
            NotFound: no dropped table has this id (any more).
            AlreadyPresent: another table has the name by now.
            NotReady: recalled, but it could not be opened in time.
            OutcomeUnknown: it may have been recalled, or may yet be.
        """
        return await self.recall(table_id, new_name, self._open)

    async def recall(
        self, table_id: str, new_name: str, open_: Callable[[str, int], Awaitable[T]], kind: int = 0
    ) -> T:
        """Recall a table or journal, and open it.

        Args:
            table_id: of the dropped one.
            new_name: empty: the one that it had.
            open_: opens it, given its id and the milliseconds left.
            kind: `TableSpec.kind` of what is recalled.

        Raises:
            NotFound, AlreadyPresent, NotReady, OutcomeUnknown: as `recall_table`.
            InvalidArgument: it is of another kind.
        """
        attempts = Attempts(self._env, self._timeout_ms)
        request = pb.RecallTableRequest(
            id=table_id, new_name=new_name, operation=self._operation(), kind=kind
        )
        await self._masters.define(methods.RECALL_TABLE, request, timeout_ms=self._timeout_ms)
        done = f"{_KINDS[kind]} {table_id} was recalled"
        return await self._follow(done, table_id, attempts, open_, kind)
