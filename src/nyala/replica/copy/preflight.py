"""Checks before and during a copy: the source's offer, the free disk space, and this server's own vote."""

import errno
from collections.abc import Sequence

from nyala.common.errors import Corrupt, InvalidArgument, Unavailable
from nyala.common.ids import OpId
from nyala.common.options import MIB
from nyala.raft.messages import Entry
from nyala.replica.context import ReplicaContext
from nyala.replica.copy.protocol import CopyOffer, CopyProgress
from nyala.replica.superblock import Superblock


def check_offer(
    context: ReplicaContext,
    progress: CopyProgress,
    offer: CopyOffer,
    free_bytes: int,
    pending_bytes: int,
    tombstone: Superblock | None,
    *,
    force: bool,
) -> None:
    """Refuse an offer that is malformed, unsafe, or does not fit on the disk beside other copies.

    Args:
        context: the process.
        progress: progress of the copy.
        offer: offer of the source.
        free_bytes: free bytes of the disk.
        pending_bytes: bytes that all copies to this server still have to write, this one included.
        tombstone: tombstone of the group on this server; None: none.
        force: copy even if this server's vote is lost.

    Raises:
        Corrupt: the offer is malformed. InvalidArgument: this server is a voter and its vote is lost.
            OSError: the disk is too full.
    """
    names = [f.name for f in offer.files]
    if len(set(names)) != len(names) or not all(map(_plain, names)):
        raise Corrupt(f"the source offers files that cannot be: {names[:5]}")
    own = offer.config.get(context.uuid)
    if tombstone is not None and not tombstone.votes and own is not None and own.voter:
        if not force:
            raise InvalidArgument(
                f"this server is a voter of {progress.group} and has lost what it promised: remove it "
                "from the group first and add it again, or force the copy and risk what only it "
                "had acknowledged"
            )
        progress.may_lose += "; what only this server had acknowledged may be lost"
    need = pending_bytes + context.options.wal_reserve_mb * MIB
    if free_bytes < need:
        raise OSError(
            errno.ENOSPC,
            f"the copy, others under way and the log's reserve need {need} bytes, {free_bytes} are free",
        )


def check_entries(entries: Sequence[Entry], last: OpId, stamp: int) -> tuple[OpId, int]:
    """Check that entries follow the last one.

    Args:
        entries: as the source sent them.
        last: op id of the last entry that the copy has.
        stamp: timestamp of that entry.

    Returns:
        Op id and stamp of the new last entry.

    Raises:
        Corrupt: indexes are not contiguous, or terms or stamps decrease.
    """
    for entry in entries:
        if entry.id.index != last.index + 1 or entry.id.term < last.term or entry.stamp <= stamp:
            raise Corrupt(f"the source sent entry {entry.id} after {last}")
        last, stamp = entry.id, entry.stamp
    return last, stamp


def check_reach(offer: CopyOffer, last: OpId, tombstone: Superblock | None) -> None:
    """Check that a copy has every entry that this server has acknowledged.

    Entries acknowledged by a deleted replica still count towards commits, so the copy must have them. The
    comparison is that of a candidate's log in an election.

    Args:
        offer: offer of the source.
        last: op id of the last entry that the copy has.
        tombstone: tombstone of the group on this server; None: there is none.

    Raises:
        Unavailable: the source's log ends before its own configuration. InvalidArgument: the source is
            behind.
    """
    if last.index < offer.config.id.index:
        raise Unavailable(f"the source's log ends at {last}, before its own configuration")
    if tombstone is None:
        return
    acknowledged = tombstone.last
    if (last.term, last.index) < (acknowledged.term, acknowledged.index):
        raise InvalidArgument(
            f"the replica of {tombstone.group} that was here had acknowledged {acknowledged}, and the source "
            f"reaches {last} only: copy a replica that is further"
        )


def _plain(name: str) -> bool:
    return bool(name) and "/" not in name and "\0" not in name and name not in (".", "..")
