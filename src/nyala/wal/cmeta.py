"""Consensus metadata: per group one file with the committed configuration, the term and the vote."""

from nyala.common.ids import TabletId
from nyala.env.files import Files
from nyala.raft.membership import Configuration
from nyala.raft.messages import HardState


class ConsensusMetadata:
    """Files `<directory>/cmeta/<group>`. All calls block (lane DISK)."""

    def __init__(self, files: Files, directory: str) -> None: ...

    def load(self, group: TabletId) -> tuple[HardState, Configuration] | None:
        """None when there is no file. Raises BadChecksum, BadVersion, OSError."""
        ...

    def save(self, group: TabletId, hard_state: HardState, config: Configuration) -> None:
        """Durable on return."""
        ...

    def delete(self, group: TabletId) -> None:
        """Durable on return; no error if it is not there."""
        ...

    def groups(self) -> list[TabletId]:
        """Groups that have a file, sorted."""
        ...
