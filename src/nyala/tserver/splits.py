"""Split keys of a scan, so that several readers can share one tablet."""

from nyala.common.errors import InvalidArgument
from nyala.common.ids import ColumnId
from nyala.env.env import Env
from nyala.env.rpc import Handlers
from nyala.env.tasks import Lane
from nyala.tablet.read.selection import ScanFilter
from nyala.tablet.read.view import split_keys
from nyala.tserver.scanners import bounds_of, check_predicate, failing_on_damage
from nyala.tserver.tablets import Tablets
from nyala.wire import methods
from nyala.wire.proto import reads_pb2 as pb

_NOW = (1 << 64) - 1


class Splits:
    """Handler of `TabletReads.SplitKeyRange`. On the loop only.

    Args:
        env: lanes.
        tablets: of this server.
    """

    def __init__(self, env: Env, tablets: Tablets) -> None:
        self._env = env
        self._tablets = tablets

    def handlers(self) -> Handlers:
        """Return what this service answers."""
        return {methods.SPLIT_KEY_RANGE: self.split}

    async def split(self, request: pb.SplitKeyRangeRequest) -> pb.SplitKeyRangeResponse:
        """Look at what lies here now, leader or not: rows to come make pieces larger, never wrong.

        Raises:
            InvalidArgument: the token does not fit the tablet, or is no scan; too many pieces.
            SchemaMismatch: it was planned for a schema that is no more.
            Unavailable: no such tablet here, or damaged, or yet to learn of the token's schema.
        """
        token = request.token
        if token.changes or token.keys_ipc:
            raise InvalidArgument("only scans can be split; change feeds and look-ups cannot")
        hosted = self._tablets.get(token.tablet_id)
        view = hosted.tablet.view()
        columns = None if token.all_columns else [ColumnId(i) for i in token.column_ids]
        where = check_predicate(view, token, columns)
        wanted = ScanFilter(token.at or _NOW, where, bounds_of(token))
        with failing_on_damage(hosted.replica):
            keys = await self._env.tasks.run(
                Lane.COMPUTE, split_keys, view, wanted, columns, request.split_bytes
            )
        return pb.SplitKeyRangeResponse(split_keys=keys)
