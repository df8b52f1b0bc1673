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
    room: int,
    owed: int,
    buried: Superblock | None,
    *,
    force: bool,
) -> None:
    """Refuse an offer that is malformed, unsafe, or does not fit on the disk beside other copies.

    Args:
        context: the process.
        progress: of the copy.
        offer: of the source.
        room: free bytes of the disk.
        owed: bytes that all copies to this server still have to write, this one included.
        buried: tombstone of the group on this server; None: none.
        force: copy even if this server's vote is lost.

    Raises:
        Corrupt: the offer is malformed. InvalidArgument: this server is a voter and its vote is lost.
            OSError: the disk is too full.
    """
    names = [f.name for f in offer.files]
    if len(set(names)) != len(names) or not all(map(_plain, names)):
        raise Corrupt(f"the source offers files that cannot be: {names[:5]}")
    me = offer.config.get(context.uuid)
    if buried is not None and not buried.votes and me is not None and me.voter:
        if not force:
            raise InvalidArgument(
                f"this server is a voter of {progress.group} and has lost what it promised: remove it "
                "from the group first and add it again, or force the copy and risk what only it "
                "had acknowledged"
            )
        progress.may_lose += "; what only this server had acknowledged may be lost"
    need = owed + context.options.wal_reserve_mb * MIB
    if room < need:
        raise OSError(
            errno.ENOSPC,
            f"the copy, others under way and the log's reserve need {need} bytes, {room} are free",
        )


def check_entries(entries: Sequence[Entry], last: OpId, stamp: int) -> tuple[OpId, int]:
    """Check that entries follow the last one.

    Args:
        entries: as the source sent them.
        last: op id of the last entry that the copy has.
        stamp: of that entry.

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


def check_reach(offer: CopyOffer, last: OpId, buried: Superblock | None) -> None:
    """Check that a copy has every entry that this server has acknowledged.

    Entries acknowledged by a deleted replica still count towards commits, so the copy must have them. The
    comparison is that of a candidate's log in an election.

    Args:
        offer: of the source.
        last: op id of the last entry that the copy has.
        buried: tombstone of the group on this server; None: there is none.

    Raises:
        Unavailable: the source's log ends before its own configuration. InvalidArgument: the source is
            behind.
    """
    if last.index < offer.config.id.index:
        raise Unavailable(f"the source's log ends at {last}, before its own configuration")
    if buried is None:
        return
    promised = buried.last
    if (last.term, last.index) < (promised.term, promised.index):
        raise InvalidArgument(
            f"the replica of {buried.group} that was here had acknowledged {promised}, and the source "
            f"reaches {last} only: copy a replica that is further"
        )


def _plain(name: str) -> bool:
    return bool(name) and "/" not in name and "\0" not in name and name not in (".", "..")
