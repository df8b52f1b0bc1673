"""Check of --master-addresses against the configuration in the data directory (S2.16)."""

from collections.abc import Sequence

from nyala.common.errors import InvalidArgument
from nyala.datadir.instance import Instance
from nyala.raft.membership import Configuration


def check(configured: Sequence[str], config: Configuration, opened: Instance) -> None:
    """Check a list of masters against the present and earlier committed configurations.

    The committed configuration defines the masters. An earlier list, from before masters were added or
    removed online, is accepted, so that it need not be changed on each machine before the next restart. New
    masters whose first start was not completed are not checked.

    Args:
        configured: public addresses from --master-addresses.
        config: the committed configuration in the data directory.
        opened: the instance file.

    Raises:
        InvalidArgument: names the addresses that differ.
    """
    listed, present = set(configured), {m.address for m in config.members}
    if listed == present or tuple(sorted(configured)) in opened.masters:
        return
    more, fewer = sorted(listed - present), sorted(present - listed)
    differ = []
    if more:
        differ.append(f"{', '.join(more)} is given and no master")
    if fewer:
        differ.append(f"{', '.join(fewer)} is a master and not given")
    raise InvalidArgument(
        f"--master-addresses differs from the masters' configuration in this directory: {'; '.join(differ)}. "
        f"Start it with {','.join(sorted(present))}; masters are added by nyala master add and removed by "
        "nyala master remove, not by this list"
    )
