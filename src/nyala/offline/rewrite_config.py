"""Rewrites the consensus metadata of a stopped server, by an operator's order.

Blocking calls, under `inspection.lock`. Writes are durable on return, and the previous file is kept beside as
`<group>.<n>.bak`; a refusal changes nothing.
"""

from collections.abc import Sequence
from dataclasses import replace

from nyala.common import addresses
from nyala.common.errors import InvalidArgument
from nyala.common.ids import SYS_CATALOG, ServerUuid, TabletId
from nyala.env.files import Files
from nyala.offline.inspection import StoppedReplica
from nyala.raft import membership
from nyala.raft.membership import Configuration, Member
from nyala.raft.messages import HardState
from nyala.raft.reconfiguration.unsafe_recovery import TERM_GAP
from nyala.wal.cmeta import ConsensusMetadata
from nyala.wal.segments.format import group_bytes

MOST_TERM = 1 << 62
"""Maximum term, above which peers refuse messages."""


def rewritten(
    known: StoppedReplica, group: TabletId, peers: Sequence[Member], *, force: bool
) -> Configuration:
    """Return the configuration that an operator gives, with the op id under which metadata store it.

    It replaces the committed one under its op id; or under that of a later one in the log, which would
    otherwise become active again; or under that of the log's end, see `StoppedReplica.decided`.

    Args:
        known: state of the replica in the directory.
        group: id of the tablet.
        peers: members of the new configuration.
        force: return it even if it may lose acknowledged writes.

    Raises:
        InvalidArgument: the configuration is invalid, or needs `force`.
    """
    if known.server.uuid not in [m.uuid for m in peers]:
        raise InvalidArgument(
            f"this server, {known.server.uuid}, is not among those named; it must be a member"
        )
    if group == SYS_CATALOG and len(peers) % 2 == 0:
        raise InvalidArgument(
            f"{len(peers)} masters: choose an odd number; 2N + 1 masters tolerate the loss of N"
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
    lost = {*(known.later or (known.config,))[-1].lost, *before}
    after = membership.initial(peers, lost)
    return replace(after, id=known.decided)


def rewrite(
    files: Files, directory: str, group: TabletId, known: StoppedReplica, after: Configuration
) -> str:
    """Write a configuration to the metadata; return the path of the backup; empty: unchanged.

    If it removes members, the term is set far beyond theirs (see `TERM_GAP`).

    Args:
        files: the file system.
        directory: the data directory.
        group: id of the tablet.
        known: the replica as its directory has it.
        after: the new configuration.
    """
    if replace(after, id=known.config.id) == known.config and not known.later:
        return ""
    removed, promised = {*after.lost} - {*known.config.lost}, known.hard_state
    beyond = HardState(promised.term + TERM_GAP) if removed else promised
    return put(files, directory, group, beyond, after)


def set_term(
    files: Files, directory: str, group: TabletId, known: StoppedReplica, term: int
) -> str:
    """Raise a replica's term, without a vote; return the path of the backup; empty: unchanged.

    Args:
        files: the file system.
        directory: the data directory.
        group: id of the tablet.
        known: the replica as its directory has it.
        term: the new term; not below the present one.

    Raises:
        InvalidArgument: the term is below the present one, or above the maximum.
    """
    if term == known.hard_state.term and known.hard_state.vote is None:
        return ""
    if not known.hard_state.term < term < MOST_TERM:
        raise InvalidArgument(
            f"the term of {group} is {known.hard_state.term} here, and {term} is not above it and below "
            f"{MOST_TERM}; choose a term between them"
        )
    return put(files, directory, group, HardState(term), known.config)


def put(
    files: Files, directory: str, group: TabletId, hard_state: HardState, config: Configuration
) -> str:
    """Replace a group's metadata; return the path of the backup.

    Args:
        files: the file system.
        directory: directory of the server.
        group: id of the tablet.
        hard_state: term and vote.
        config: the committed configuration.
    """
    path = f"{directory}/cmeta/{group}"
    taken, number = files.list(f"{directory}/cmeta"), 1
    while f"{group}.{number}.bak" in taken:
        number += 1
    backup = f"{path}.{number}.bak"
    files.write_atomic(backup, files.read(path))
    ConsensusMetadata(files, directory).save(group, hard_state, config)
    return backup


def member(text: str, config: Configuration) -> Member:
    """Return the voter that an operator names.

    Args:
        text: `UUID:HOST:PORT/PEER_HOST:PEER_PORT`, or only `UUID` for an unchanged member of `config`.
        config: where addresses are looked up.

    Raises:
        InvalidArgument: the text is neither.
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
