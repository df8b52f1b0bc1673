"""Replacement of a tablet that lost all its replicas: its state, and the order to the masters."""

from dataclasses import dataclass
from typing import Any

from nyala.client.core import ClientCore
from nyala.operate.run import connected
from nyala.wire import methods
from nyala.wire.proto import nyala_pb2 as pb

TIMEOUT_MS = 30_000


@dataclass(frozen=True, slots=True)
class TabletReplacement:
    """State of a tablet that is, or may be, replaced.

    Attributes:
        tablet: its id.
        table: name of its table.
        state: in the catalog.
        members: members of its configuration: uuid and address.
        shown: uuids of live servers with a working replica.
        successor: id of the tablet with its key range now; its own id if it is not replaced.
    """

    tablet: str
    table: str
    state: str
    members: tuple[tuple[str, str], ...]
    shown: tuple[str, ...]
    successor: str

    @property
    def done(self) -> bool:
        """True if it is replaced already."""
        return self.successor != self.tablet

    @property
    def description(self) -> list[str]:
        """Lines to show before the replacement."""
        lines = [f"tablet {self.tablet} of table {self.table}: {self.state}; its members are"]
        for uuid, address in self.members:
            replica = "it has a replica" if uuid in self.shown else "it shows no replica that works"
            lines.append(f"  {uuid} at {address}; {replica}")
        if self.done:
            return lines
        lines.append("  an empty tablet takes its key range; all rows that it had are lost")
        lines.append("  replicas of it that are reported later are deleted")
        if self.shown:
            lines.append(
                f"  BUT {', '.join(self.shown)} can recover the tablet from its survivors: "
                f"nyala tablet survivors {self.tablet}"
            )
        return lines

    def facts(self, changed: bool) -> dict[str, Any]:
        """Return the values for JSON."""
        return {
            "tablet": self.tablet, "table": self.table, "state": self.state,
            "members": [uuid for uuid, _ in self.members], "shown_by": list(self.shown),
            "replaced_by": self.successor if self.done else None, "changed": changed,
        }  # fmt: skip


def inspect(masters: str, tablet: str) -> TabletReplacement:
    """Return the leader master's state of a tablet, without changing anything.

    Raises:
        NotFound: no table has such a tablet.
    """
    return _request(masters, pb.ReplaceTabletRequest(tablet_id=tablet, dry_run=True))


def replace(masters: str, tablet: str, *, force: bool) -> TabletReplacement:
    """Replace a tablet by an empty one; durable on return. Idempotent.

    Args:
        masters: comma-separated addresses.
        tablet: id of the tablet.
        force: replace it even if replicas still work.

    Raises:
        NotFound: no table has such a tablet.
        InvalidArgument: it has working replicas and `force` is not given, or too few servers are live.
    """
    return _request(masters, pb.ReplaceTabletRequest(tablet_id=tablet, force=force))


async def replace_with(core: ClientCore, tablet: str) -> TabletReplacement:
    """Replace a tablet by an empty one, with a client that is connected. Raises as `replace`."""
    return await _order(core, pb.ReplaceTabletRequest(tablet_id=tablet))


def _request(masters: str, request: pb.ReplaceTabletRequest) -> TabletReplacement:
    return connected(masters, lambda core: _order(core, request))


async def _order(core: ClientCore, request: pb.ReplaceTabletRequest) -> TabletReplacement:
    answer: pb.ReplaceTabletResponse = await core.masters.change(
        methods.REPLACE_TABLET, request, timeout_ms=TIMEOUT_MS
    )
    members = tuple((m.uuid, m.address) for m in answer.members)
    shown = tuple(answer.shown_by)
    return TabletReplacement(
        request.tablet_id, answer.table_name, answer.state, members, shown, answer.tablet_id
    )
