"""Requests of copies that a server refuses."""

from nyala.common.ids import TabletId
from tests.unit.replica.support.replica_support import GROUP

OTHER = TabletId("b" * 32)


async def nothing_changed(fleet, number=3, group=GROUP):
    assert fleet.leftovers(number, group) == []
    assert fleet.host(number).find(group) is None
    await fleet.until(lambda: fleet.sessions() == 0, "no session is left")
