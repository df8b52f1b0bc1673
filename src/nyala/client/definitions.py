"""Creating and dropping tables: numbered like writes, so that a retried definition takes effect once."""

from collections.abc import Mapping

from nyala.client.locations import Locations, OpenTable
from nyala.client.masters import Masters
from nyala.client.retrying import Attempts
from nyala.common.errors import TimedOut, Unavailable
from nyala.common.partition_spec import Partition, resolve
from nyala.common.schema import Schema
from nyala.env.env import Env
from nyala.wire import convert, methods
from nyala.wire.proto import nyala_pb2 as pb


async def describe(masters: Masters, name: str, timeout_ms: int) -> pb.DescribeTableResponse:
    """Return what the masters know of a table.

    Raises:
        NotFound: no such table.
    """
    request = pb.DescribeTableRequest(name=name)
    answer: pb.DescribeTableResponse = await masters.call(
        methods.DESCRIBE_TABLE, request, timeout_ms=timeout_ms
    )
    return answer


class Definitions:
    """The definitions of one client. Runs on the client's loop."""

    def __init__(
        self, env: Env, masters: Masters, locations: Locations, client_id: bytes, timeout_ms: int
    ) -> None:
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

        Raises:
            AlreadyPresent: the name is taken.
            InvalidArgument: the definition is wrong, or more replicas are asked for than servers live.
            TimedOut: created, but some tablet did not start in time; the message says how many.
        """
        attempts = Attempts(self._env, self._timeout_ms)
        spec = pb.TableSpec(
            name=name,
            schema=convert.schema_to_proto(schema),
            partition=convert.partition_schema_to_proto(resolve(partition, schema)),
            replicas=replicas,
            options=dict(options),
            comment=comment,
        )
        request = pb.CreateTableRequest(table=spec, operation=self._operation())
        await self._masters.call(
            methods.CREATE_TABLE, request, timeout_ms=max(1, attempts.left_ms())
        )
        while True:
            answer = await describe(self._masters, name, max(1, attempts.left_ms()))
            if answer.ready:
                try:
                    return await self._locations.open(name, max(1, attempts.left_ms()))
                except Unavailable:
                    pass  # a tablet's leader is not known yet: look again below
            if not await attempts.pause():
                raise TimedOut(
                    f"table {name!r} was created, but only {answer.tablets_running} of {answer.tablets} "
                    "tablets run yet; watch it with: nyala table describe " + name
                )

    async def drop_table(self, name: str) -> None:
        """Drop a table; its name is free on return. Its tablets are deleted in the background."""
        request = pb.DropTableRequest(name=name, operation=self._operation())
        await self._masters.call(methods.DROP_TABLE, request, timeout_ms=self._timeout_ms)
