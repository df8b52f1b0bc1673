"""Page of the anchors of a server's log: the entries of each group that may not be removed yet, and why."""

from nyala.common.errors import Unavailable
from nyala.replica.host import ReplicaHost
from nyala.wal.segments.segment import PINNED
from nyala.web.pages import Listing

COLUMNS = ("tablet", "first needed", "first needed here", "retained for others, bytes", "applied")


def anchors_page(host: ReplicaHost | None) -> Listing:
    """Return the page of the anchors of a server's log, by tablet.

    `first needed` is the index of the first entry that is retained at all, `first needed here` that of the
    first one which this server's replica still has to apply or flush.

    Args:
        host: replicas of the server; None: they are not open.

    Raises:
        Unavailable: they are not open yet.
    """
    if host is None:
        raise Unavailable("this server is starting; retry")
    held = host.wal.held_bytes()
    rows = []
    for group, anchor in sorted(host.wal.anchors().items()):
        replica = host.find(group)
        applied = "" if replica is None else str(replica.status().applied.index)
        ends = (_index(anchor.first), _index(anchor.own))
        rows.append((group, *ends, str(held.get(group, 0)), applied))
    return Listing("anchors of the log", COLUMNS, rows)


def _index(index: int) -> str:
    return "none" if index >= PINNED else str(index)
