"""Split keys of a scan, with which several readers share one tablet."""

from nyala.common.errors import InvalidArgument
from nyala.common.ids import ColumnId
from nyala.env.env import Env
from nyala.env.rpc import Handlers
from nyala.env.tasks import Lane
from nyala.tablet.read.view import split_keys
from nyala.tablet.rows.selection import ScanFilter
from nyala.tserver.scans.scanners import bounds_of, check_predicate, failing_on_damage, view_at
from nyala.tserver.tablets import Tablets
from nyala.wire import methods
from nyala.wire.proto import reads_pb2 as pb

_NOW = (1 << 64) - 1


class Splits:
    """Handler of `TabletReads.SplitKeyRange`. Used on the event loop only.

    Args:
        env: lanes.
        tablets: tablets of this server.
    """

    def __init__(self, env: Env, tablets: Tablets) -> None:
        self._env = env
        self._tablets = tablets

    def handlers(self) -> Handlers:
        """Return the handlers of this service."""
        return {methods.SPLIT_KEY_RANGE: self.split}

    async def split(self, request: pb.SplitKeyRangeRequest) -> pb.SplitKeyRangeResponse:
        """Return split keys for the current rows of this replica, which need not lead.

        Raises:
            InvalidArgument: the token does not fit the tablet, is not a scan, or gives too many pieces.
            SchemaMismatch: it was planned for an older schema.
            Unavailable: there is no such tablet here, it is damaged, or has not applied the token's schema
                yet.
        """
        token = request.token
        if token.changes or token.keys_ipc:
            raise InvalidArgument("only scans can be split; change feeds and look-ups cannot")
        hosted = self._tablets.get(token.tablet_id)
        view = view_at(hosted.tablet.view(), token, token.at or _NOW)
        columns = None if token.all_columns else [ColumnId(i) for i in token.column_ids]
        where = check_predicate(view, token, columns)
        wanted = ScanFilter(token.at or _NOW, where, bounds_of(token))
        with failing_on_damage(hosted.replica):
            keys = await self._env.tasks.run(
                Lane.COMPUTE, split_keys, view, wanted, columns, request.split_bytes
            )
        return pb.SplitKeyRangeResponse(split_keys=keys)
