"""Orders to tablet servers, as values. Their content is looked up in the catalog when they are sent.

An action names its effect, not its message: the same action derived twice is equal, and one that the catalog
no longer calls for is recognised as superseded.
"""

from dataclasses import dataclass
from typing import TypeAlias

from nyala.common.ids import OpId, ServerUuid, TabletId
from nyala.master.catalog.group_state import ConfigChange


@dataclass(frozen=True, slots=True)
class CreateTabletAction:
    """A member of the tablet's configuration shall make its replica. Safe to repeat."""

    server: ServerUuid
    tablet: TabletId


@dataclass(frozen=True, slots=True)
class DeleteTabletAction:
    """A server shall delete a replica that it should not have.

    The catalog records its tablet as deleted (S0.43), or the tablet's committed configuration does not name
    the server (S0.44).
    """

    server: ServerUuid
    tablet: TabletId


@dataclass(frozen=True, slots=True)
class AlterTabletAction:
    """The leader of a tablet shall let it become what its table is now. Safe to repeat."""

    server: ServerUuid
    tablet: TabletId


@dataclass(frozen=True, slots=True)
class ChangeMembersAction:
    """The leader of a tablet shall change its members, if the configuration is still `config` (S0.42)."""

    server: ServerUuid
    tablet: TabletId
    config: OpId
    step: ConfigChange


@dataclass(frozen=True, slots=True)
class WitnessAction:
    """A member that is to be a witness shall make a log without data. Safe to repeat."""

    server: ServerUuid
    tablet: TabletId
    leader: ServerUuid


@dataclass(frozen=True, slots=True)
class CopyAction:
    """A member without a replica shall copy the leader's. Said again it tells how far that is."""

    server: ServerUuid
    tablet: TabletId
    source: ServerUuid


@dataclass(frozen=True, slots=True)
class CancelCopyAction:
    """A server that is no member any more shall copy no further."""

    server: ServerUuid
    tablet: TabletId


Action: TypeAlias = (
    CreateTabletAction
    | DeleteTabletAction
    | AlterTabletAction
    | ChangeMembersAction
    | WitnessAction
    | CopyAction
    | CancelCopyAction
)
