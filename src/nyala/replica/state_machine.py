"""Interfaces of a replica: the state machine that it replicates, and the transport of its messages.

`tablet.Tablet`, which holds users' rows and the masters' catalog alike, satisfies `StateMachine` by shape;
`wire/peers.py` and the simulator satisfy `Transport`. `replica/` imports neither.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from nyala.common.ids import NO_OP, CommittedOperation, OpId, PreparedTransaction, ServerUuid
from nyala.raft.messages import PeerBatch

__all__ = ["FlushPoint", "PeerBatch", "PreparesTransactions", "StateMachine", "Transport"]


@dataclass(frozen=True, slots=True)
class FlushPoint:
    """The point in a group's log up to which a state machine's files contain all effects.

    Attributes:
        op: the last entry (of any kind) whose effect the files contain; replay starts after it.
        stamp: that entry's hybrid time; the files contain nothing stamped above it.
        extra: the replica's own state at the flush point (exactly-once sessions), opaque to the machine.
    """

    op: OpId = NO_OP
    stamp: int = 0
    extra: bytes = b""


class AnyFlushPoint(Protocol):
    """The interface of a `FlushPoint`: machines that do not import this package have a class of their own."""

    @property
    def op(self) -> OpId:
        """The last entry whose effect the files contain."""
        ...

    @property
    def stamp(self) -> int:
        """That entry's hybrid time."""
        ...

    @property
    def extra(self) -> bytes:
        """The replica's own state at the flush point."""
        ...


class AnyHeldFile(Protocol):
    """One file of a checkpoint."""

    @property
    def name(self) -> str:
        """Name of the file in the state machine's directory."""
        ...

    @property
    def size_bytes(self) -> int:
        """Size of the file."""
        ...


class AnyCheckpoint(Protocol):
    """Files of a state machine at one flush point, for a copy, retained unchanged until `release`."""

    @property
    def flush_point(self) -> AnyFlushPoint:
        """Flush point of the files: a copy replays the group's log from there."""
        ...

    @property
    def files(self) -> Sequence[AnyHeldFile]:
        """All files but the manifest."""
        ...

    @property
    def manifest_name(self) -> str:
        """Name of the manifest, a small file that lists the others and is written last."""
        ...

    @property
    def manifest_bytes(self) -> bytes:
        """Content of the manifest as of the flush point."""
        ...

    def release(self) -> None:
        """Release the files. Idempotent. Lane APPLY."""
        ...


class StateMachine(Protocol):
    """State machine that a group replicates. All methods block; the replica calls them in the lane named.

    `apply` is a pure function of (state, operation): no clock, option or memory limit may change its
    outcome. It raises only when the machine is broken, which makes the replica FAILED.
    """

    @property
    def flush_point(self) -> AnyFlushPoint:
        """Flush point of the files on disk, from the manifest. Any lane."""
        ...

    def apply(self, operations: Sequence[CommittedOperation]) -> list[bytes]:
        """Apply committed operations in order; return one result each. Lane APPLY.

        Grouping never changes results.
        """
        ...

    def unflushed_bytes(self) -> int:
        """Memory that a flush would free. Any lane."""
        ...

    def prepare_flush(self, flush_point: FlushPoint) -> Callable[[], Callable[[], None]] | None:
        """Fix a flush point at what has been applied. Lane APPLY; short.

        Returns:
            None when nothing is to be written, or a `build` to run in lane COMPUTE; it returns an
            `install` to run in lane APPLY, which switches the manifest; from then on `self.flush_point` is
            `flush_point`.
        """
        ...

    def checkpoint(self) -> AnyCheckpoint:
        """Retain the files of `flush_point` for a copy. Lane APPLY.

        Raises:
            InvalidArgument: this machine has no data.
        """
        ...

    def close(self) -> None:
        """Release files and memory; durable state stays as it is. Lane APPLY."""
        ...


@runtime_checkable
class PreparesTransactions(Protocol):
    """Interface of a state machine in which transactions can be prepared, beside `StateMachine`."""

    @property
    def prepared(self) -> Mapping[bytes, PreparedTransaction]:
        """Transactions that are prepared as of what has been applied, as an immutable value. Lane APPLY."""
        ...

    def apply_in_steps(
        self, operations: Sequence[CommittedOperation]
    ) -> Generator[None, None, list[bytes]]:
        """Apply operations as `StateMachine.apply`, in steps of bounded size. Lane APPLY.

        The first step is short: it may run on the event loop. Other jobs of the lane run between the steps,
        but no flush of this machine begins.
        """
        ...


class Transport(Protocol):
    """Transport of batches between servers.

    It may lose, delay, duplicate or reorder them, but never alter them.
    """

    def send(self, address: str, batch: PeerBatch) -> None:
        """Queue a batch for the peer port at `address`; drops it when the peer cannot be reached."""
        ...

    def receive(
        self, handler: Callable[[PeerBatch], None], lost: Callable[[ServerUuid], None]
    ) -> None:
        """Register the handlers of incoming batches, and of servers whose port refuses connections.

        Both are called on the loop. `lost` is a hint that a process has ended: late, again, or wrong.
        """
        ...
