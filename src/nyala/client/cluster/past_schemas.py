"""The schema that a table had at a time, as the masters know it."""

from dataclasses import dataclass

from nyala.client.cluster.masters import Masters
from nyala.client.cluster.tablet_cache import OLD_TIMEOUT_MS, OpenTable
from nyala.common.errors import Retryable
from nyala.common.schema import Column, Schema
from nyala.wire import convert, methods
from nyala.wire.proto import nyala_pb2 as pb


@dataclass(frozen=True, slots=True)
class PastSchema:
    """Columns of a table during an interval of hybrid time.

    Attributes:
        schema: the columns.
        dropped: those of them that the table does not have now.
        until: hybrid time from which the table has other columns; 0: it has these now.
        version: schema version of the table now.
    """

    schema: Schema
    dropped: tuple[Column, ...] = ()
    until: int = 0
    version: int = 0


class PastSchemas:
    """Look-up of the columns of tables at earlier times. Runs on the client's loop.

    Args:
        masters: masters of the cluster.
        max_age_ms: largest age of an answer of another master than the leader; 0: the leader's only.
        timeout_ms: deadline of a look-up.
    """

    def __init__(self, masters: Masters, max_age_ms: int, timeout_ms: int) -> None:
        self._masters = masters
        self._max_age_ms = max_age_ms
        self._timeout_ms = timeout_ms

    async def at(self, table: OpenTable, at: int) -> PastSchema:
        """Return the columns that a table had at a time.

        While no master answers, those of the open table are returned if it had them then, as far as it knows.

        Args:
            table: the open table.
            at: hybrid time.

        Raises:
            HistoryGone: the columns of that time are not kept any more.
            NotFound: the table was dropped.
        """
        known, timeout_ms = at >= table.columns_from, self._timeout_ms
        try:
            answer: pb.DescribeTableResponse = await self._masters.look_up(
                methods.DESCRIBE_TABLE,
                pb.DescribeTableRequest(id=table.id, at=at),
                max_age_ms=self._max_age_ms,
                timeout_ms=min(OLD_TIMEOUT_MS, timeout_ms) if known else timeout_ms,
            )
        except Retryable:
            if not known:
                raise
            return PastSchema(table.schema, version=table.schema.version)
        now = convert.schema_from_proto(answer.table.schema)
        if not answer.HasField("schema_at"):  # by a master of an earlier release
            return PastSchema(now, version=now.version)
        then = convert.schema_from_proto(answer.schema_at)
        dropped = tuple(c for c in then.columns if c.id not in now.by_id)
        return PastSchema(then, dropped, answer.schema_until, now.version)
