"""One copy to this server as its parts share it: the source, the progress, and the limits of all copies."""

from collections.abc import Callable
from dataclasses import dataclass

from nyala.replica.copy.protocol import CopyProgress, CopySource
from nyala.replica.copy.room import CopyRoom
from nyala.replica.copy.throttle import CopyThrottle
from nyala.replica.lifecycle import OpenMachine


@dataclass(frozen=True, slots=True)
class CopyJob:
    """One copy to this server.

    Attributes:
        source: the replica that is copied.
        progress: of this copy; its parts keep it up to date.
        pace: limit of bytes per second, shared by all copies to this server.
        room: limit of disk space, shared by all copies to this server.
        owed_bytes: returns how many bytes of files all copies to this server have yet to write.
        open_machine: opens the state machine that was copied.
    """

    source: CopySource
    progress: CopyProgress
    pace: CopyThrottle
    room: CopyRoom
    owed_bytes: Callable[[], int]
    open_machine: OpenMachine
