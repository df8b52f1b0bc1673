"""Text of `nyala local_replica unsafe_recover` before it asks: what is left, and what is lost."""

from typing import Any

from nyala.cli.output import say
from nyala.cli.wal_text import time_text
from nyala.common.hybrid_time import to_micros
from nyala.offline.recovery import RecoveryPlan


def tell(left: RecoveryPlan, directory: str) -> None:
    """Print it for people."""
    say(f"UNSAFE: the replica of {left.group} in {directory} goes on alone")
    say(f"  it cannot otherwise: {left.why}")
    when = f", of {time_text(to_micros(left.cut.stamp))} UTC" if left.cut.stamp else ""
    say(f"  its files are whole and have {left.rows:,} rows, as of entry {left.cut.op}{when}")
    if left.keeps_log:
        say(f"  its log continues them up to entry {left.last}")
    else:
        say("  its log does not continue them; what it still has of this tablet is forgotten")
    say(f"  LOST FOR GOOD: every write after entry {left.last}, acknowledged or not")
    if left.known > left.last.index:
        say(f"  entries up to {left.known} are known to have been committed")
    for member in left.given_up:
        say(f"  give up {member.uuid} at {member.address}; what it says is not heard any more")
    say(
        "  BUT if another replica of it works (nyala tablet survivors), or has files of a later entry (this "
        "command there, with --dry-run), go on with that one"
    )


def facts(left: RecoveryPlan, backup: str) -> dict[str, Any]:
    """Return it for JSON."""
    return {
        "tablet": left.group, "server": left.server, "changed": bool(backup), "backup": backup,
        "rows": left.rows, "files": str(left.cut.op), "last": str(left.last),
        "known": left.known, "why": left.why, "given_up": [m.uuid for m in left.given_up],
    }  # fmt: skip
