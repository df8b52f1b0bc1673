"""Text of `nyala local_replica unsafe_recover` before its confirmation: what is kept, what is lost."""

from typing import Any

from nyala.cli.output import say
from nyala.cli.wal_text import time_text
from nyala.common.hybrid_time import to_micros
from nyala.common.texts.counted import counted
from nyala.offline.recovery import RecoveryPlan


def show_plan(left: RecoveryPlan, directory: str) -> None:
    """Print the text."""
    say(f"UNSAFE: the replica of {left.group} in {directory} becomes the only member of its group")
    say(f"  reason: {left.why}")
    when = (
        f", of {time_text(to_micros(left.flush_point.stamp))} UTC" if left.flush_point.stamp else ""
    )
    rows = counted(left.rows, "row")
    say(f"  its files are intact and have {rows}, as of entry {left.flush_point.op}{when}")
    if left.keeps_log:
        say(f"  its log continues up to entry {left.last}")
    else:
        say("  its log does not continue from there; its records of this tablet are discarded")
    say(f"  LOST FOR GOOD: every write after entry {left.last}, acknowledged or not")
    if left.known > left.last.index:
        say(f"  entries up to {left.known} are known to have been committed")
    for member in left.removed:
        say(f"  removed: {member.uuid} at {member.address}; its messages will be ignored")
    say(
        "  BUT if another replica works (nyala tablet survivors), or has files of a later entry (run this "
        "command there with --dry-run), recover that one"
    )


def facts(left: RecoveryPlan, backup: str) -> dict[str, Any]:
    """Return the same as JSON values."""
    return {
        "tablet": left.group, "server": left.server, "changed": bool(backup), "backup": backup,
        "rows": left.rows, "files": str(left.flush_point.op), "last": str(left.last),
        "known": left.known, "why": left.why, "removed": [m.uuid for m in left.removed],
    }  # fmt: skip
