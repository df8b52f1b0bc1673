"""RPCs about the members of one tablet, each sent to the server that executes it."""

from typing import Any

from nyala.common.errors import NyalaError
from nyala.common.ids import OpId
from nyala.operate.group_view import ClusterServer, GroupView, ServerDirectory, ask
from nyala.raft.membership import Member
from nyala.wire import convert, methods, status
from nyala.wire.proto import nyala_pb2 as pb

ORDER_MS = 15_000
CHANGE_MS = 10_000
COPY_TRIES = 3


class CopyFailed(NyalaError):
    """A copy failed; nothing changed on its target."""


class MemberRpcs:
    """Sender of orders about one tablet.

    Args:
        directory: the servers that may have replicas.
        tablet: its id.
    """

    def __init__(self, directory: ServerDirectory, tablet: str) -> None:
        self._directory = directory
        self._tablet = tablet
        self._begun = 0  # copies

    def begin(self) -> None:
        """Reset the number of copies tried."""
        self._begun = 0

    async def change(self, group: GroupView, *edits: tuple[str, Member]) -> None:
        """Change members of the configuration in `group`; committed on return."""
        leader, config = group.leader, group.config
        assert leader is not None, "a change without a leader"
        assert config is not None, "a change without a configuration"
        request = pb.ChangeConfigRequest(
            destination_uuid=leader.uuid,
            cluster_id=self._directory.id,
            tablet_id=self._tablet,
            config_term=config.id.term,
            config_index=config.id.index,
            changes=[pb.MemberChange(kind=k, member=convert.member_to_proto(m)) for k, m in edits],
            timeout_ms=CHANGE_MS,
        )
        await self._order(leader, methods.CHANGE_CONFIG, request)

    async def step_down(self, leader: ClusterServer, successor: ClusterServer | None) -> None:
        """Transfer leadership; another replica leads on return."""
        request = pb.LeaderStepDownRequest(
            destination_uuid=leader.uuid,
            cluster_id=self._directory.id,
            tablet_id=self._tablet,
            successor=successor.uuid if successor else "",
            timeout_ms=CHANGE_MS,
        )
        await self._order(leader, methods.LEADER_STEP_DOWN, request)

    async def copy(
        self,
        server: ClusterServer,
        source: ClusterServer,
        *,
        force: bool = False,
        last: pb.CopyProgress | None = None,
    ) -> pb.CopyProgress:
        """Start a copy, or return the progress of the one under way.

        Args:
            server: the target.
            source: server of the source replica.
            force: copy even from a replica that may lack acknowledged writes.
            last: the last copy to the target, if it failed; a few are tried.

        Raises:
            CopyFailed: too many copies have failed.
        """
        if last is not None and last.stage != "DONE" and self._begun >= COPY_TRIES:
            raise failure(last)
        request = pb.StartCopyRequest(
            destination_uuid=server.uuid,
            cluster_id=self._directory.id,
            tablet_id=self._tablet,
            source_uuid=source.uuid,
            source_address=source.address,
            force=force,
        )
        answer: pb.StartCopyResponse = await self._order(server, methods.START_COPY, request)
        self._begun += 1
        return answer.copy

    async def cancel(self, server: ClusterServer) -> None:
        """Cancel the copy to a server."""
        request = pb.CancelCopyRequest(
            destination_uuid=server.uuid, cluster_id=self._directory.id, tablet_id=self._tablet
        )
        await self._order(server, methods.CANCEL_COPY, request)

    async def delete(self, server: ClusterServer, group: GroupView) -> None:
        """Delete a replica, unless it has a configuration that the decision did not know."""
        expected = _known_config(group, server)
        request = pb.DeleteTabletRequest(
            destination_uuid=server.uuid,
            cluster_id=self._directory.id,
            tablet_id=self._tablet,
            reason="a person's command",
            compare_config=True,
            config_term=expected.term,
            config_index=expected.index,
        )
        await self._order(server, methods.DELETE_TABLET, request)

    async def witness(self, server: ClusterServer, group: GroupView) -> None:
        """Create a log without data that begins after the leader's last applied entry."""
        leader = group.status
        assert leader is not None, "a witness without a leader"
        request = pb.CreateWitnessRequest(
            destination_uuid=server.uuid,
            cluster_id=self._directory.id,
            tablet_id=self._tablet,
            consensus=leader.report.consensus,
            start_term=leader.applied_term,
            start_index=leader.applied_index,
            start_stamp=leader.safe_time,
        )
        await self._order(server, methods.CREATE_WITNESS, request)

    async def _order(self, server: ClusterServer, method: Any, request: Any) -> Any:
        return await ask(self._directory.core, server, method, request, ORDER_MS)


def _known_config(group: GroupView, server: ClusterServer) -> OpId:
    """Return the op id of the newest configuration that a deletion of a replica has taken into account.

    The group's, if it does not name the server: older ones in the replica's log, committed or not, are
    superseded. That of the replica itself, if it is a member that is deleted nevertheless.
    """
    if group.config is not None and group.member(server) is None:
        return group.config.id
    seen = group.of(server).status
    assert seen is not None, f"{server} has no replica of {group.tablet}"
    known = (seen.report.consensus, seen.active)
    return max(convert.configuration_from_proto(c).id for c in known)


def failure(copy: pb.CopyProgress) -> CopyFailed:
    """Return why a copy failed."""
    why = str(status.from_proto(copy.error)) if copy.HasField("error") else copy.stage
    return CopyFailed(f"the copy of {copy.tablet_id} from {copy.source_address} failed: {why}")


def tenths(copy: pb.CopyProgress) -> str:
    """Return the progress of a copy as text, which changes at most ten times in each stage."""
    done = 10 * copy.bytes_done // copy.bytes_total if copy.bytes_total else 0
    return f"{copy.stage} {10 * done} % of {copy.bytes_total} bytes"
