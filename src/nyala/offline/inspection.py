"""Inspection of a data directory: its owner, its replicas, and its problems.

Blocking calls that change nothing. They take no lock, except `lock`, and work beside a running server.
`rewrite_config.py` has the changes.
"""

from collections.abc import Callable
from dataclasses import dataclass

from nyala.common.errors import (
    BadChecksum,
    BadVersion,
    Corrupt,
    Forbidden,
    InvalidArgument,
    LogGap,
    NotFound,
)
from nyala.common.ids import NO_OP, OpId, ServerUuid, TabletId
from nyala.datadir import instance
from nyala.datadir.identity import CLOCK_FILE, check_ceiling
from nyala.datadir.instance import Instance
from nyala.env.clock import HybridClock, SystemClock
from nyala.env.files import Files
from nyala.raft import membership
from nyala.raft.membership import Configuration
from nyala.raft.messages import HardState
from nyala.replica.member.bootstrap import newest
from nyala.replica.superblock import ReplicaStage, Superblocks
from nyala.replica.witness import Witness
from nyala.wal.cmeta import ConsensusMetadata
from nyala.wal.dump import Finding, dump_log
from nyala.wal.recovery.recovered import RecoveredGroup, Recovery
from nyala.wal.segments.segment import Segment


@dataclass(frozen=True, slots=True)
class StoppedReplica:
    """State of one group in the directory of a stopped server.

    Attributes:
        server: owner of the directory.
        hard_state: the newer one of consensus metadata and log.
        config: committed configuration in the consensus metadata.
        later: newer configurations in the log, committed or not, the newest last.
        last: op id of the last entry in the log.
    """

    server: Instance
    hard_state: HardState
    config: Configuration
    later: tuple[Configuration, ...]
    last: OpId

    @property
    def decided(self) -> OpId:
        """Op id up to which entries count as committed under a configuration that replaces this one.

        If this server was the only voter, its whole log is committed. Otherwise copies of it could lack
        entries, and two of them would be a majority.
        """
        if self.later:
            return self.later[-1].id
        alone = self.config.voters == (self.server.uuid,)
        return max(self.config.id, self.last) if alone else self.config.id


def owner(files: Files, directory: str) -> Instance:
    """Return the owner of a data directory. Raises NotFound (it has none), Corrupt."""
    path = f"{directory}/{instance.FILE_NAME}"
    if not files.exists(path):
        why = "it has no instance file" if files.exists(directory) else "there is no such folder"
        try:
            files.list(directory)
        except NotADirectoryError:
            why = "it is a file, and not a folder"
        raise NotFound(f"{directory} is no server's data directory: {why}")
    return instance.decode(files.read(path), path)


def lock(files: Files, directory: str) -> Instance:
    """Lock a data directory until this process ends, so that its server cannot run; return its owner.

    Raises:
        Forbidden: it runs. NotFound, Corrupt: as `owner`.
    """
    found = owner(files, directory)
    if not files.lock(f"{directory}/{instance.LOCK_NAME}"):
        raise Forbidden(
            f"the data directory {directory} is in use by a running process; stop that server first"
        )
    return found


def stopped_replica(files: Files, directory: str, group: TabletId) -> StoppedReplica:
    """Return the state of a group in a directory.

    Args:
        files: the file system.
        directory: the data directory.
        group: id of the tablet.

    Raises:
        NotFound: it has no such replica. Corrupt: metadata or log are damaged. OSError.
    """
    server = owner(files, directory)
    saved = ConsensusMetadata(files, directory).load(group)
    if saved is None:
        raise NotFound(
            f"{directory} has no consensus metadata of {group}; nyala local_replica list shows its replicas"
        )
    hard_state, config = saved
    own = logged(files, directory, group)
    later = [
        membership.decode(e.payload, e.id) for e in own.configs if e.id.index > config.id.index
    ]
    return StoppedReplica(
        server, newest(hard_state, own.hard_state), config, tuple(later), own.last
    )


def logged(files: Files, directory: str, group: TabletId) -> RecoveredGroup:
    """Return a group's content of the log, as a start would recover it, without changing anything.

    Args:
        files: the file system.
        directory: the data directory.
        group: id of the tablet.

    Raises:
        Corrupt: records of the group are damaged, or may be missing.
    """
    found, recovery = dump_log(files, f"{directory}/wal", data_dir=directory), Recovery()
    if found.missing:
        raise LogGap(f"{directory}/wal: {found.missing}: replace this replica")
    for one in found.segments:
        end = one.size
        for problem in one.problems:
            if problem.finding is not Finding.DAMAGE:
                end = min(end, problem.offset)
            elif group in problem.groups or not problem.certain:
                raise BadChecksum(
                    f"{one.path} is damaged at {problem.offset} ({problem.check}): this replica has to be "
                    "replaced",
                    {"path": one.path, "offset": str(problem.offset)},
                )
        segment = Segment(one.sequence, one.path, end)
        for record in one.records:
            if record.offset < end and record.payload is not None:
                recovery.replay(segment, record)
    recovery.finish()
    own = recovery.groups.get(group, RecoveredGroup())
    if own.corrupt is not None:
        raise own.corrupt
    return own


@dataclass(frozen=True, slots=True)
class ReplicaListing:
    """One replica in a directory, by its superblock and metadata; `error`: why they cannot be read."""

    group: TabletId
    stage: str
    term: int = 0
    vote: ServerUuid | None = None
    config: OpId = NO_OP
    members: int = 0
    error: str = ""


def replicas(files: Files, directory: str) -> list[ReplicaListing]:
    """Return the replicas in a directory, by id, tombstones too."""
    metadata, superblocks = ConsensusMetadata(files, directory), Superblocks(files, directory)
    return [_listed(g, superblocks, metadata) for g in superblocks.groups()]


def _listed(
    group: TabletId, superblocks: Superblocks, metadata: ConsensusMetadata
) -> ReplicaListing:
    try:
        superblock = superblocks.load(group)
        assert superblock is not None, f"{group} has no superblock"
        if superblock.stage is ReplicaStage.TOMBSTONED:
            hard = superblock.hard_state
            return ReplicaListing(group, superblock.stage, hard.term, hard.vote)
        saved = metadata.load(group)
    except (Corrupt, BadVersion) as err:
        return ReplicaListing(group, "?", error=str(err))
    except OSError as err:
        return ReplicaListing(group, "?", error=f"{err.filename}: {err.strerror}")
    if saved is None:
        missing = "it has no consensus metadata" if superblock.stage is ReplicaStage.READY else ""
        return ReplicaListing(group, superblock.stage, error=missing)
    hard, config = saved
    return ReplicaListing(
        group, superblock.stage, hard.term, hard.vote, config.id, len(config.members)
    )


def changeable(files: Files, directory: str, group: TabletId) -> None:
    """Check that a replica is opened at the next start; otherwise its consensus metadata have no effect.

    Args:
        files: the file system.
        directory: the data directory.
        group: id of the tablet.

    Raises:
        InvalidArgument: it is LOST, was deleted, or is an incomplete copy. Corrupt: its superblock is
            damaged.
    """
    superblock = Superblocks(files, directory).load(group)
    if superblock is None or superblock.stage is ReplicaStage.READY:
        return
    what = f"the replica of {group} in {directory} is {superblock.stage}"
    if superblock.stage is ReplicaStage.LOST:
        raise InvalidArgument(
            f"{what}: it stays FAILED whatever its metadata say. Delete it, and have it copied; if no "
            "replica works any more: nyala local_replica unsafe_recover"
        )
    raise InvalidArgument(f"{what}: there is no replica that has a configuration")


def problems(files: Files, directory: str, read: Callable[[TabletId, str], object]) -> list[str]:
    """Return the problems of a directory: instance, superblocks, metadata, data, log, clock.

    Args:
        files: the file system.
        directory: directory of the server.
        read: reads the data of a replica, by group and directory; raises Corrupt or BadVersion.
    """
    listed = replicas(files, directory)
    found = [f"{r.group}: {r.error}" for r in listed if r.error]
    whole = {r.group: r.stage for r in listed}
    for group, stage in whole.items():
        if stage == ReplicaStage.LOST:
            found.append(
                f"{group}: the log lost records of it; delete it, and have it copied; if no "
                "replica works any more: nyala local_replica unsafe_recover"
            )
        if stage == ReplicaStage.COPYING:
            found.append(f"{group}: a copy was broken off; make it again, or delete it")
        if stage == ReplicaStage.READY:
            found += _data_problems(files, group, f"{directory}/data/{group}", read)
    for name in files.list(f"{directory}/data"):
        if name not in whole:
            found.append(f"{directory}/data/{name} belongs to no replica")
    found += _clock_problems(files, directory)
    return found + _log_problems(files, directory)


def _data_problems(
    files: Files, group: TabletId, path: str, read: Callable[[TabletId, str], object]
) -> list[str]:
    if not files.list(path):
        return [f"{group}: its data are missing; replace this replica"]
    try:
        if Witness.open(files, path) is None:
            read(group, path)
    except (Corrupt, BadVersion) as err:
        return [f"{group}: {err.message}"]
    return []


def _clock_problems(files: Files, directory: str) -> list[str]:
    try:
        check_ceiling(files, directory)
        HybridClock(SystemClock(), files, f"{directory}/{CLOCK_FILE}")
    except Corrupt as err:
        return [err.message]
    return []


def _log_problems(files: Files, directory: str) -> list[str]:
    found, own = [], owner(files, directory).uuid
    log = dump_log(files, f"{directory}/wal", data_dir=directory)
    if log.missing:
        found.append(
            f"{directory}/wal: {log.missing}; replicas with records there must be replaced"
        )
    extent_file = log.extent_file
    if extent_file is not None and extent_file.damaged:
        found.append(
            f"{extent_file.path} is damaged: missing segments would not be noticed at a start; the server "
            "rewrites it while it runs"
        )
    for segment in log.segments:
        if segment.server_uuid not in (None, own):
            found.append(
                f"{segment.path} was written by server {segment.server_uuid}, this directory is that of "
                f"{own}: give each server its own data directory"
            )
        for problem in segment.problems:
            if problem.finding is Finding.DAMAGE:
                who = ", ".join(problem.groups) if problem.certain else "of unknown replicas"
                found.append(f"{segment.path} at {problem.offset}: {problem.check} ({who})")
    return found
