"""The consensus metadata of a server that does not run: what they say, and rewriting them by a person's word.

Rules: blocking calls. What is written is durable on return, and what it replaces is kept beside it as
`<group>.<n>.bak`; refused, nothing was changed. Reading takes no lock and works beside a running server.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from nyala.common import addresses
from nyala.common.errors import (
    BadChecksum,
    BadVersion,
    Corrupt,
    Forbidden,
    InvalidArgument,
    NotFound,
)
from nyala.common.ids import NO_OP, SYS_CATALOG, OpId, ServerUuid, TabletId
from nyala.env.files import Files
from nyala.raft import membership
from nyala.raft.membership import Configuration, Member
from nyala.raft.messages import EntryKind, HardState
from nyala.raft.rescue import TERMS_APART
from nyala.replica import instance
from nyala.replica.bootstrap import newest
from nyala.replica.instance import Instance
from nyala.replica.superblock import Stage, Superblocks
from nyala.wal.cmeta import ConsensusMetadata
from nyala.wal.dump import Finding, dump_log
from nyala.wal.format import group_bytes
from nyala.wal.recovered import RecoveredGroup, Recovery
from nyala.wal.segment import Segment

MOST_TERM = 1 << 62
"""Peers refuse what is above it."""


@dataclass(frozen=True, slots=True)
class Known:
    """What a directory says of one group.

    Attributes:
        server: whose directory it is.
        hard_state: the later one of metadata and log.
        config: committed, as the metadata say.
        later: configurations that only the log has, committed or not, the newest last.
        last: op id of the last entry in the log.
    """

    server: Instance
    hard_state: HardState
    config: Configuration
    later: tuple[Configuration, ...]
    last: OpId

    @property
    def decided(self) -> OpId:
        """Op id up to which what is here counts as committed under a configuration that takes its place.

        Who was the only voter has everything committed that its log holds. Had it forgotten so, copies of
        it would be empty, and two of them its majority.
        """
        if self.later:
            return self.later[-1].id
        alone = self.config.voters == (self.server.uuid,)
        return max(self.config.id, self.last) if alone else self.config.id


def owner(files: Files, directory: str) -> Instance:
    """Return whose data directory it is. Raises NotFound (nobody's), Corrupt."""
    path = f"{directory}/{instance.FILE_NAME}"
    if not files.exists(path):
        raise NotFound(f"{directory} is no server's data directory: it has no instance file")
    return instance.decode(files.read(path), path)


def lock(files: Files, directory: str) -> Instance:
    """Keep the server from running, until this process ends; return whose directory it is.

    Raises:
        Forbidden: it runs. NotFound, Corrupt: as `owner`.
    """
    found = owner(files, directory)
    if not files.lock(f"{directory}/{instance.LOCK_NAME}"):
        raise Forbidden(
            f"the data directory {directory} is in use by a running process; stop that server first"
        )
    return found


def look(files: Files, directory: str, group: TabletId) -> Known:
    """Return what a directory says of a group.

    Raises:
        NotFound: it has no such replica. Corrupt: metadata or log are damaged. OSError.
    """
    server = owner(files, directory)
    saved = ConsensusMetadata(files, directory).load(group)
    if saved is None:
        raise NotFound(
            f"{directory} holds no consensus metadata of {group}; nyala local_replica list shows what it "
            "holds"
        )
    hard_state, config = saved
    logged = _logged(files, f"{directory}/wal", group)
    later = [
        membership.decode(e.payload, e.id)
        for e in logged.entries
        if e.kind is EntryKind.CONFIG and e.id.index > config.id.index
    ]
    last = logged.entries[-1].id if logged.entries else NO_OP
    return Known(server, newest(hard_state, logged.hard_state), config, tuple(later), last)


def _logged(files: Files, directory: str, group: TabletId) -> RecoveredGroup:
    """Return what the log has of a group, as opening it would, without changing anything."""
    found, recovery = dump_log(files, directory), Recovery()
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
    own = recovery.groups.get(group, RecoveredGroup())
    if own.corrupt is not None:
        raise own.corrupt
    return own


@dataclass(frozen=True, slots=True)
class Listed:
    """One replica in a directory, as its superblock and metadata say; `error`: why they cannot be read."""

    group: TabletId
    stage: str
    term: int = 0
    vote: ServerUuid | None = None
    config: OpId = NO_OP
    members: int = 0
    error: str = ""


def replicas(files: Files, directory: str) -> list[Listed]:
    """Return the replicas in a directory, by id, tombstones too."""
    metadata, superblocks = ConsensusMetadata(files, directory), Superblocks(files, directory)
    return [_listed(g, superblocks, metadata) for g in superblocks.groups()]


def _listed(group: TabletId, superblocks: Superblocks, metadata: ConsensusMetadata) -> Listed:
    try:
        superblock = superblocks.load(group)
        assert superblock is not None, f"{group} has no superblock"
        if superblock.stage is Stage.TOMBSTONED:
            hard = superblock.hard_state
            return Listed(group, superblock.stage, hard.term, hard.vote)
        saved = metadata.load(group)
    except (Corrupt, BadVersion) as err:
        return Listed(group, "?", error=str(err))
    if saved is None:
        missing = "it has no consensus metadata" if superblock.stage is Stage.READY else ""
        return Listed(group, superblock.stage, error=missing)
    hard, config = saved
    return Listed(group, superblock.stage, hard.term, hard.vote, config.id, len(config.members))


def problems(files: Files, directory: str) -> list[str]:
    """Return what is wrong with a directory, in words: instance, superblocks, metadata, log, folders."""
    listed = replicas(files, directory)
    found = [f"{r.group}: {r.error}" for r in listed if r.error]
    whole = {r.group: r.stage for r in listed}
    for group, stage in whole.items():
        if stage == Stage.COPYING:
            found.append(f"{group}: a copy was broken off; make it again, or delete it")
        if stage == Stage.READY and not files.list(f"{directory}/data/{group}"):
            found.append(f"{group}: its data are gone; replace this replica")
    for name in files.list(f"{directory}/data"):
        if name not in whole:
            found.append(f"{directory}/data/{name} belongs to no replica")
    log = dump_log(files, f"{directory}/wal")
    for segment in log.segments:
        for problem in segment.problems:
            if problem.finding is Finding.DAMAGE:
                who = ", ".join(problem.groups) if problem.certain else "it cannot be told whose"
                found.append(f"{segment.path} at {problem.offset}: {problem.check} ({who})")
    return found


def rewritten(
    known: Known, group: TabletId, peers: Sequence[Member], *, force: bool
) -> Configuration:
    """Return the configuration that a person wants, as metadata can hold it.

    It comes in the place of the committed one, with its id; or with that of a later one in the log, which
    would be taken up again otherwise; or with that of the log's end, see `Known.decided`.

    Raises:
        InvalidArgument: it cannot be, or needs `force`.
    """
    if known.server.uuid not in [m.uuid for m in peers]:
        raise InvalidArgument(
            f"this server, {known.server.uuid}, is not among those named; it has to be a member"
        )
    if group == SYS_CATALOG and len(peers) % 2 == 0:
        raise InvalidArgument(
            f"{len(peers)} masters: take an odd number; 2N + 1 of them bear the loss of N"
        )
    for what in ("address", "peer_address"):
        named = [getattr(m, what) for m in peers]
        if len(set(named)) != len(named):
            raise InvalidArgument(f"two members have one {what}: {', '.join(named)}")
    if known.later and not force:
        raise InvalidArgument(
            f"the log holds a later configuration, of {known.later[-1].id}, which may not be committed: "
            "start the server, so that its group decides; if it never can, --force takes all entries up to "
            "it for committed"
        )
    before = {m.uuid for c in (known.config, *known.later) for m in c.members}
    gone = {*(known.later or (known.config,))[-1].lost, *before}
    after = membership.initial(peers, gone)
    return replace(after, id=known.decided)


def rewrite(
    files: Files, directory: str, group: TabletId, known: Known, after: Configuration
) -> str:
    """Put a configuration into the metadata; return the path of the backup, empty: it says this already.

    Where it gives somebody up, the term goes far beyond those of the lost (see `TERMS_APART`).
    """
    if replace(after, id=known.config.id) == known.config and not known.later:
        return ""
    given_up, promised = {*after.lost} - {*known.config.lost}, known.hard_state
    beyond = HardState(promised.term + TERMS_APART) if given_up else promised
    return _replace(files, directory, group, beyond, after)


def set_term(files: Files, directory: str, group: TabletId, known: Known, term: int) -> str:
    """Raise a replica's term, without a vote in it; return the path of the backup, empty: it has it already.

    Raises:
        InvalidArgument: terms never fall, or it is beyond all terms.
    """
    if term == known.hard_state.term and known.hard_state.vote is None:
        return ""
    if not known.hard_state.term < term < MOST_TERM:
        raise InvalidArgument(
            f"the term of {group} is {known.hard_state.term} here and can only grow, and stays below "
            f"{MOST_TERM}; {term} will not do"
        )
    return _replace(files, directory, group, HardState(term), known.config)


def _replace(
    files: Files, directory: str, group: TabletId, hard_state: HardState, config: Configuration
) -> str:
    path = f"{directory}/cmeta/{group}"
    taken, number = files.list(f"{directory}/cmeta"), 1
    while f"{group}.{number}.bak" in taken:
        number += 1
    backup = f"{path}.{number}.bak"
    files.write_atomic(backup, files.read(path))
    ConsensusMetadata(files, directory).save(group, hard_state, config)
    return backup


def member(text: str, config: Configuration) -> Member:
    """Return the voter that a person names.

    Args:
        text: `UUID:HOST:PORT/PEER_HOST:PEER_PORT`, or `UUID` alone for a member of `config` as it is there.
        config: where addresses are looked up.

    Raises:
        InvalidArgument: it is neither.
    """
    uuid, _, where = text.partition(":")
    group_bytes(uuid)  # as a tablet's id, 32 hex digits
    known = config.get(ServerUuid(uuid))
    if not where:
        if known is None:
            raise InvalidArgument(
                f"{uuid} is no member now: add its addresses, {uuid}:HOST:PORT/PEER_HOST:PEER_PORT"
            )
        return replace(known, voter=True, promote=False, replace=False)
    address, slash, peer_address = where.partition("/")
    if not slash:
        raise InvalidArgument(f"{text}: write UUID:HOST:PORT/PEER_HOST:PEER_PORT")
    addresses.parse(address)
    addresses.parse(peer_address)
    return Member(ServerUuid(uuid), peer_address, address)
