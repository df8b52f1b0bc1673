"""Recovery of a replica whose log lost records: it continues from its files, as the only member of its group.

Blocking calls, in the locked directory of a stopped server. The metadata name this server as the only voter
before the superblock is READY again: until then it is LOST, and the same call continues.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from nyala.common.errors import Corrupt, InvalidArgument, NotFound
from nyala.common.ids import OpId, ServerUuid, TabletId
from nyala.env.files import Files
from nyala.offline import inspection, rewrite_config
from nyala.raft import membership
from nyala.raft.membership import Configuration, Member
from nyala.raft.messages import HardState
from nyala.raft.reconfiguration.unsafe_recovery import TERM_GAP
from nyala.replica.member import bootstrap
from nyala.replica.state_machine import FlushPoint
from nyala.replica.superblock import ReplicaStage, Superblock, Superblocks
from nyala.replica.witness import Witness
from nyala.wal.cmeta import ConsensusMetadata
from nyala.wal.recovery.recovered import RecoveredGroup

PAGE = "docs/operate/lost-majority.md"


@dataclass(frozen=True, slots=True)
class RecoveryPlan:
    """State of a damaged replica, and the state in which it continues.

    Attributes:
        group: id of the tablet.
        server: uuid of the server that has the directory.
        why: the reason why its log is not used.
        flush_point: flush point of its files.
        rows: number of rows in its files.
        before: the committed configuration in its metadata.
        last: op id after which it continues: of the files' flush point, or of the log where that continues
            the files.
        known: highest index that the replica is known to have had; entries above `last` are lost.
        after: the configuration with this server only; equal to `before` if the recovery is complete.
    """

    group: TabletId
    server: ServerUuid
    why: str
    flush_point: FlushPoint
    rows: int
    before: Configuration
    last: OpId
    known: int
    after: Configuration

    @property
    def done(self) -> bool:
        """True if there is nothing to do."""
        return self.after == self.before

    @property
    def keeps_log(self) -> bool:
        """True if entries of the log continue the files."""
        return self.last.index > self.flush_point.op.index

    @property
    def removed(self) -> tuple[Member, ...]:
        """Members that are removed."""
        return tuple(m for m in self.before.members if m.uuid != self.server)


def plan(
    files: Files, directory: str, group: TabletId, read: Callable[[str], tuple[FlushPoint, int]]
) -> RecoveryPlan:
    """Return the plan to recover a replica from its files.

    Args:
        files: the file system.
        directory: directory of the server.
        group: id of the replica's group.
        read: reads all rows in a directory; returns the flush point of the files and the number of rows.

    Raises:
        NotFound: no such replica. InvalidArgument: it is not LOST, or has no data.
        Corrupt, BadVersion: its files or metadata are damaged too. OSError.
    """
    server = inspection.owner(files, directory).uuid
    stage = _stage(files, directory, group)
    saved = ConsensusMetadata(files, directory).load(group)
    if saved is None:
        raise Corrupt(
            f"the consensus metadata of {group} is missing in {directory} too, and with it the list of "
            "members: the replica cannot be recovered"
        )
    promised, config = saved
    why = _loss(files, directory, group)
    if not why and stage is ReplicaStage.READY:
        if config.voters == (server,):
            return RecoveryPlan(
                group, server, "", FlushPoint(), 0, config, config.id, config.id.index, config
            )
        raise InvalidArgument(
            f"the replica of {group} in {directory} is not LOST: its log is complete. Start the server; if "
            f"the majority of its group is lost: {PAGE}"
        )
    me = config.get(server)
    path = f"{directory}/data/{group}"
    if me is None or not me.electable or Witness.open(files, path) is not None:
        what = "no member" if me is None else "a witness, without rows"
        raise InvalidArgument(
            f"this server, {server}, is {what} in the configuration of {config.id}"
        )
    flush_point, rows = read(path)
    logged = _continuing(files, directory, group, flush_point)
    last = max(flush_point.op, logged.last, key=lambda op: op.index)
    term = max(promised.term, config.id.term, last.term, (logged.hard_state or promised).term)
    later = [membership.decode(e.payload, e.id) for e in logged.configs]
    others = {m.uuid for c in (config, *later) for m in c.members} | {*config.lost}
    alone = replace(me, voter=True, promote=False, replace=False)
    after = membership.initial([alone], others - {server})
    after = replace(after, id=OpId(term + TERM_GAP, last.index))
    known = max(config.id.index, last.index)
    return RecoveryPlan(
        group, server, why or "its log lost records", flush_point, rows, config, last, known, after
    )


def _stage(files: Files, directory: str, group: TabletId) -> ReplicaStage:
    superblock = Superblocks(files, directory).load(group)
    if superblock is None:
        raise NotFound(
            f"{directory} has no replica of {group}; nyala local_replica list shows what it has"
        )
    if superblock.stage not in (ReplicaStage.READY, ReplicaStage.LOST):
        raise InvalidArgument(
            f"the replica of {group} in {directory} is {superblock.stage}: it has no files to recover from"
        )
    return superblock.stage


def _loss(files: Files, directory: str, group: TabletId) -> str:
    """Return the damage of a group's log; empty: none was found."""
    try:
        inspection.logged(files, directory, group)
    except Corrupt as err:
        return err.message
    superblock = Superblocks(files, directory).load(group)
    return "" if superblock is None else superblock.lost


def _continuing(
    files: Files, directory: str, group: TabletId, flush_point: FlushPoint
) -> RecoveredGroup:
    """Return a group's content of the log if it is intact and continues the files; otherwise an empty one."""
    try:
        found = inspection.logged(files, directory, group)
        bootstrap.choose_base(found, flush_point)
    except Corrupt:
        return RecoveredGroup()
    return found


def execute(files: Files, directory: str, left: RecoveryPlan) -> str:
    """Make a replica the only member of its group; durable. Return the path of the metadata's backup.

    The caller has voided the group's log before, unless the log continues the files.

    Args:
        files: the file system.
        directory: the data directory.
        left: from `plan`.
    """
    backup = rewrite_config.put(
        files, directory, left.group, HardState(left.after.id.term), left.after
    )
    Superblocks(files, directory).save(Superblock(left.group, ReplicaStage.READY))
    return backup
