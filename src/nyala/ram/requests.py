"""ClientRequests: what a leading coordinator answers to clients: changes of tables, and reads."""

import json
from collections.abc import Callable, Sequence
from typing import Any

from nyala.common.errors import AlreadyPresent
from nyala.env.rpc import Handlers
from nyala.ram.answers import AlreadyAnswered
from nyala.ram.checks import check_name, check_operation, check_span, check_split
from nyala.ram.ids import ServerId
from nyala.ram.state import answer_of, parse
from nyala.ram.term import CoordinatorTerm
from nyala.ram.upkeep import Upkeep
from nyala.ram.will import WillPart
from nyala.wire import methods
from nyala.wire.proto import ram_pb2 as pb


class ClientRequests:
    """See above.

    Args:
        leading: returns the term that serves, and its upkeep; raises NotLeading.
    """

    def __init__(self, leading: Callable[[], tuple[CoordinatorTerm, Upkeep]]) -> None:
        self._leading = leading

    def handlers(self) -> Handlers:
        """Return what it answers."""
        return {
            methods.RAM_CREATE_TABLE: self._create,
            methods.RAM_DROP_TABLE: self._drop,
            methods.RAM_SPLIT_TABLET: self._split,
            methods.RAM_TABLET_MAP: self._tablet_map,
            methods.RAM_SERVER_LIST: self._server_list,
            methods.RAM_SET_RECOVERY_INFO: self._set_recovery_info,
            methods.RAM_WILLS: self._wills,
            methods.RAM_DUMP: self._dump,
        }

    async def _change(self, kind: str, request: Any) -> pb.Table:
        """Carry out a request of a client, once; return its table, without tablets if it was dropped.

        Args:
            kind: of the operation.
            request: with the name of the table, and an operation id.
        """
        check_name(request.name)
        check_operation(request.operation)
        term, _ = self._leading()
        try:
            table_id = answer_of(parse(await term.execute(kind, request))).table_id
        except AlreadyAnswered as before:
            term.check()
            table_id = before.table_id
        found = term.state.tablets.tables.get(table_id)
        return pb.Table(id=table_id, name=request.name) if found is None else found

    async def _create(self, request: pb.CreateTableRequest) -> pb.CreateTableResponse:
        check_span(request.server_span)
        return pb.CreateTableResponse(table=await self._change("create_table", request))

    async def _drop(self, request: pb.DropTableRequest) -> pb.DropTableResponse:
        return pb.DropTableResponse(id=(await self._change("drop_table", request)).id)

    async def _split(self, request: pb.SplitTabletRequest) -> pb.SplitTabletResponse:
        check_split(request.split_hash)
        try:
            return pb.SplitTabletResponse(table=await self._change("split_tablet", request))
        except AlreadyPresent:  # it is split there
            tablets = self._leading()[0].state.tablets
            return pb.SplitTabletResponse(table=tablets.named(request.name))

    async def _tablet_map(self, request: pb.TabletMapRequest) -> pb.TabletMapResponse:
        tablets = self._leading()[0].state.tablets
        if request.name:
            return pb.TabletMapResponse(tables=[tablets.named(request.name)])
        return pb.TabletMapResponse(tables=[t for _, t in sorted(tablets.tables.items())])

    async def _server_list(self, _request: pb.ServerListRequest) -> pb.ServerListResponse:
        term, _ = self._leading()
        servers = term.state.servers
        found = [s.message() for _, s in sorted(servers.servers.items())]
        return pb.ServerListResponse(
            version=servers.version,
            servers=found,
            epoch=term.epoch,
            confirmed=servers.confirmed,
            ensemble=term.ensemble,
        )

    async def _set_recovery_info(
        self, request: pb.SetRecoveryInfoRequest
    ) -> pb.SetRecoveryInfoResponse:
        await self._leading()[0].execute("set_recovery_info", request.info)
        return pb.SetRecoveryInfoResponse()

    async def _wills(self, _request: pb.WillsRequest) -> pb.WillsResponse:
        _, upkeep = self._leading()
        return pb.WillsResponse(wills=[_will(*one) for one in upkeep.present_wills().items()])

    async def _dump(self, _request: pb.DumpRequest) -> pb.DumpResponse:
        term, _ = self._leading()
        text = json.dumps(term.state.dump(), sort_keys=True)
        return pb.DumpResponse(json=text, epoch=term.epoch)


def _will(server: ServerId, parts: Sequence[WillPart]) -> pb.ServerWill:
    """Return the will of a server as a message."""
    shown = [
        pb.WillPart(
            bytes=p.load.bytes, rows=p.load.rows,
            pieces=[pb.WillPiece(table_id=t, first=f, last=la) for t, f, la in p.pieces],
        )
        for p in parts
    ]  # fmt: skip
    return pb.ServerWill(id=server.message(), parts=shown)
