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
    """Order a member of the tablet's configuration to create its replica. Idempotent."""

    server: ServerUuid
    tablet: TabletId


@dataclass(frozen=True, slots=True)
class DeleteTabletAction:
    """Order a server to delete a replica that it should not have.

    The catalog records its tablet as deleted (S0.43), or the tablet's committed configuration does not name
    the server (S0.44).
    """

    server: ServerUuid
    tablet: TabletId


@dataclass(frozen=True, slots=True)
class AlterTabletAction:
    """Order a tablet's leader to apply the present definition of its table. Idempotent."""

    server: ServerUuid
    tablet: TabletId


@dataclass(frozen=True, slots=True)
class ChangeMembersAction:
    """Order a tablet's leader to change its members, if the configuration is still `config` (S0.42)."""

    server: ServerUuid
    tablet: TabletId
    config: OpId
    step: ConfigChange


@dataclass(frozen=True, slots=True)
class WitnessAction:
    """Order a member that is to be a witness to create a log without data. Idempotent."""

    server: ServerUuid
    tablet: TabletId
    leader: ServerUuid


@dataclass(frozen=True, slots=True)
class CopyAction:
    """Order a member without a replica to copy the leader's; a repeated order returns the progress."""

    server: ServerUuid
    tablet: TabletId
    source: ServerUuid


@dataclass(frozen=True, slots=True)
class CancelCopyAction:
    """Order a server that is no longer a member to cancel its copy."""

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
