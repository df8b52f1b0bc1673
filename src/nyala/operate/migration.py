"""Migration from one master to several: all new ones are checked, then added one after the other."""

from collections.abc import Sequence

from nyala.common.errors import InvalidArgument
from nyala.operate.group_view import GroupView
from nyala.operate.master_group import MasterGroup


async def migrate(masters: MasterGroup, addresses: Sequence[str]) -> GroupView:
    """Add the new masters at these addresses. If it is interrupted, repeating it continues.

    Raises:
        InvalidArgument: there would be an even number of masters, or an address is named twice. Nothing was
            changed.
        NyalaError: as `MasterGroup.add`; if one of them cannot be a master, nothing was changed.
    """
    if not addresses or len(set(addresses)) != len(addresses):
        raise InvalidArgument("name the public address of each new master, each of them once")
    config = (await masters.view()).config
    present = [] if config is None else [m.address for m in config.members]
    wanted = list(dict.fromkeys([*present, *addresses]))
    if len(wanted) % 2 == 0:
        raise InvalidArgument(
            f"{len(wanted)} masters, {', '.join(wanted)}: choose an odd number; "
            "2N + 1 masters tolerate the loss of N"
        )
    for address in addresses:
        await masters.directory.identify(address)
    for address in addresses[:-1]:
        await masters.add(address)
    return await masters.add(addresses[-1])
