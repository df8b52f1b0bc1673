"""Orders to tablet servers, as values. What they carry is looked up in the catalog when they are sent.

An action names its effect, not its message, so the same action derived twice is equal, and one that the
catalog no longer wants is seen to be superseded.
"""

from dataclasses import dataclass
from typing import TypeAlias

from nyala.common.ids import ServerUuid, TabletId


@dataclass(frozen=True, slots=True)
class CreateTabletAction:
    """A member of the tablet's configuration shall make its replica. Safe to repeat."""

    server: ServerUuid
    tablet: TabletId


@dataclass(frozen=True, slots=True)
class DeleteTabletAction:
    """A server shall delete its replica of a tablet that the catalog records as deleted (S0.43)."""

    server: ServerUuid
    tablet: TabletId


@dataclass(frozen=True, slots=True)
class AlterTabletAction:
    """The leader of a tablet shall let it become what its table is now. Safe to repeat."""

    server: ServerUuid
    tablet: TabletId


Action: TypeAlias = CreateTabletAction | DeleteTabletAction | AlterTabletAction
