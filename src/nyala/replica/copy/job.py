"""Source, progress and limits of one copy to this server, shared by the parts that make it."""

from collections.abc import Callable
from dataclasses import dataclass

from nyala.replica.copy.protocol import CopyProgress, CopySource
from nyala.replica.copy.quota import CopyQuota
from nyala.replica.copy.throttle import CopyThrottle
from nyala.replica.lifecycle import OpenMachine


@dataclass(frozen=True, slots=True)
class CopyJob:
    """One copy to this server.

    Attributes:
        source: the replica that is copied.
        progress: progress of this copy; updated in place.
        throttle: limit of bytes per second for all copies to this server together.
        quota: limit of disk space for all copies to this server together.
        pending_bytes: returns the bytes of files that all copies to this server still have to write.
        open_machine: opens the copied state machine.
    """

    source: CopySource
    progress: CopyProgress
    throttle: CopyThrottle
    quota: CopyQuota
    pending_bytes: Callable[[], int]
    open_machine: OpenMachine
