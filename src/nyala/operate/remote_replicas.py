"""Replicas of one running server: listed, checked, copied, deleted."""

from collections.abc import Callable
from dataclasses import astuple, dataclass, fields

from nyala.client.core import ClientCore
from nyala.common.errors import InvalidArgument
from nyala.operate.group_view import ENDED, ClusterServer, GroupView, TServerDirectory, ask, view
from nyala.operate.member_rpcs import MemberRpcs, failure, tenths
from nyala.wire import methods
from nyala.wire.proto import nyala_pb2 as pb

POLL_MS = 200
Notify = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class RemoteReplica:
    """One replica of a server."""

    tablet: str
    table: str
    state: str
    role: str
    term: int
    last: str
    committed: int
    bytes: int
    copy: str
    error: str

    @property
    def problem(self) -> str:
        """Problem of the replica; empty: none."""
        if self.state in ("RUNNING", "TOMBSTONED"):
            return ""
        why = f": {self.error}" if self.error else ""
        return f"the replica of {self.tablet} is {self.state}{why}"


COLUMNS = tuple(f.name for f in fields(RemoteReplica))


def cells(row: RemoteReplica) -> tuple[object, ...]:
    """Return a row as it is printed."""
    return astuple(row)


async def replicas_of_server(
    core: ClientCore, name: str
) -> tuple[ClusterServer, list[RemoteReplica]]:
    """Return all replicas of a server, tombstones too.

    Raises:
        NotFound: no such server. Unavailable: it does not answer.
    """
    directory = TServerDirectory(core)
    await directory.learn()
    server = directory.find(name)
    await directory.check(server)
    tablets: pb.ListTabletsResponse = await ask(
        core, server, methods.LIST_TABLETS, pb.ListTabletsRequest()
    )
    copies: pb.CopyStatusResponse = await ask(
        core, server, methods.COPY_STATUS, pb.CopyStatusRequest()
    )
    making = {c.tablet_id: _copy_words(c) for c in copies.copies if c.stage not in ("DONE",)}
    rows = [_row(t, making.pop(t.report.tablet_id, "")) for t in tablets.tablets]
    rows += [RemoteReplica(t, "", "", "", 0, "", 0, 0, words, "") for t, words in making.items()]
    return server, rows


def _row(t: pb.TabletStatus, copy: str) -> RemoteReplica:
    report = t.report
    last = f"{t.last_term}.{t.last_index}"
    return RemoteReplica(
        report.tablet_id, t.table_name, report.state, report.role, report.consensus.term, last,
        t.commit_index, t.data_bytes, copy, report.error,
    )  # fmt: skip


def _copy_words(copy: pb.CopyProgress) -> str:
    return f"{copy.stage} {copy.bytes_done} of {copy.bytes_total} bytes from {copy.source_address}"


async def copy_replica(
    core: ClientCore,
    tablet: str,
    source_name: str,
    target_name: str,
    *,
    force: bool,
    notify: Notify,
) -> pb.CopyProgress:
    """Copy a replica to another server, and wait until it runs there. If repeated, it continues waiting.

    Args:
        core: a client of the cluster.
        tablet: its id.
        source_name: uuid or address of the source server.
        target_name: uuid or address of the target server.
        force: copy even from a replica that may lack acknowledged writes.
        notify: called with the action and its progress.

    Raises:
        NotFound: unknown tablet or server. Forbidden: another cluster's. AlreadyPresent: it runs there.
        InvalidArgument: the source has no data. CopyFailed: nothing changed on the target.
    """
    directory = TServerDirectory(core)
    await directory.learn()
    group = await view(directory, tablet)
    source, target = directory.find(source_name, group), directory.find(target_name, group)
    for server in (source, target):
        await directory.check(server)
    replica = group.of(source)
    if not replica.has_data:
        raise InvalidArgument(
            f"{source} has no replica of {tablet} with data to copy from: it is {replica.state or 'none'}"
            f"{replica.silent and f', {replica.silent}'}"
        )
    warning = "; forced: it may lack writes that were acknowledged" if force else ""
    notify(f"copy the replica of {tablet} on {source} to {target}{warning}")
    copy = await MemberRpcs(directory, tablet).copy(target, source, force=force)
    notified = ""
    while copy.stage not in (*ENDED, "WAITING"):
        if (words := tenths(copy)) != notified:
            notify(words)
            notified = words
        await core.env.tasks.sleep_ms(POLL_MS)
        request = pb.CopyStatusRequest(tablet_ids=[tablet])
        found: pb.CopyStatusResponse = await ask(core, target, methods.COPY_STATUS, request)
        if not found.copies:
            raise failure(pb.CopyProgress(tablet_id=tablet, source_address=source.address,
                                          stage="lost: the server was restarted"))  # fmt: skip
        copy = found.copies[0]
    if copy.stage in ("FAILED", "CANCELLED"):
        raise failure(copy)
    if copy.may_lose:
        notify(f"it may lack something: {copy.may_lose}")
    return copy


async def delete_replica(
    core: ClientCore, name: str, tablet: str, *, force: bool, notify: Notify
) -> bool:
    """Delete a replica that its group does not need; a tombstone keeps its vote.

    Args:
        core: a client of the cluster.
        name: uuid or address of the server.
        tablet: its id.
        force: delete even a member of the group.
        notify: called with the action.

    Returns:
        Whether there was anything to delete.

    Raises:
        NotFound: unknown tablet or server. InvalidArgument: it is a member of the group.
        CasFailed: its configuration has changed meanwhile.
    """
    directory = TServerDirectory(core)
    await directory.learn()
    group = await view(directory, tablet)
    server = directory.find(name, group)
    await directory.check(server)
    if group.of(server).copying and group.member(server) is None:
        notify(f"cancel the copy to {server}")
        await MemberRpcs(directory, tablet).cancel(server)
        group = await view(directory, tablet)
    if not group.of(server).exists:
        notify(f"{server} has no replica of {tablet}; nothing to do")
        return False
    lost = _possible_loss(group, server)
    if lost and not force:
        raise InvalidArgument(
            f"{server} is a member of {tablet}, {lost}. nyala tablet change_config remove_replica removes "
            "it safely; --force deletes it nevertheless"
        )
    notify(f"delete the replica of {tablet} on {server}" + (f": forced, {lost}" if lost else ""))
    await MemberRpcs(directory, tablet).delete(server, group)
    return True


def _possible_loss(group: GroupView, server: ClusterServer) -> str:
    """Return the risk of a deletion; empty: none."""
    if group.config is None or group.member(server) is None:
        return ""
    if group.leader is None:
        return "which has no leader: writes that only this replica has would be lost"
    return "which would have one replica less, and may lose its majority"
