"""The check that every live server has transactions, before one is begun or committed.

An older tablet server would write a staged batch at once, and an older master does not know the decisions.
"""

from collections.abc import Iterable

from nyala.common.errors import Forbidden, Unavailable
from nyala.common.version import TRANSACTIONS
from nyala.master.catalog.catalog import Catalog
from nyala.master.tservers import TServers
from nyala.wire.proto import nyala_pb2 as pb


def check(
    catalog: Catalog, servers: TServers, masters: Iterable[pb.ServerInfoResponse], now_us: int
) -> None:
    """Check the protocol versions of all live servers.

    Args:
        catalog: catalog of the leader, with the list of servers.
        servers: the tablet servers that have reported.
        masters: registrations of the other masters that have answered.
        now_us: monotonic time.

    Raises:
        Forbidden: some server is of a release without transactions; the message names it.
        Unavailable: a server that counts as alive has not reported to this master yet.
    """
    known = [s.registration for s in servers.alive(now_us)]
    older = [s for s in (*known, *masters) if s.protocol_version < TRANSACTIONS]
    if older:
        named = ", ".join(f"{s.role} {s.address} (release {s.version})" for s in older)
        raise Forbidden(
            f"transactions need protocol {TRANSACTIONS} on every server, and these have an older one: "
            f"{named}. Upgrade them, then retry; nothing was staged or committed"
        )
    reported = {s.uuid for s in servers.all()}
    for listed in catalog.servers.all():
        if listed.alive and listed.uuid not in reported:
            raise Unavailable(
                f"tablet server {listed.address} has not reported to this master yet, so its release is not "
                "known; retry"
            )
