"""The coordinator's operations, each with its commit point; docs/internals/coordinator.md has the table."""

from nyala.ram.operations.record_operation import OperationContext
from nyala.ram.operations.servers import (
    AssignGroup,
    Confirm,
    Crash,
    DissolveGroups,
    Enlist,
    NoteLoads,
    RemoveServer,
    SetRecoveryInfo,
)
from nyala.ram.operations.tables import CreateTable, DropTable, RecoverTablets, SplitTablet
from nyala.recipes.operations.operation import Operation

KINDS = (CreateTable, DropTable, SplitTablet, RecoverTablets, Enlist, Crash, RemoveServer, Confirm,
         SetRecoveryInfo, AssignGroup, DissolveGroups, NoteLoads)  # fmt: skip


def operations(context: OperationContext) -> list[Operation]:
    """Return all operations."""
    return [kind(context) for kind in KINDS]
