"""Operation: a kind of change of distributed state that a crash of its leader leaves undone, or completed.

An operation is computed, its intent appended (the commit point), applied to the local state, and carried out
at other processes; then an entry with the result replaces the intent. The next leader completes the
operations whose intents it finds, in their order, before it takes requests. One that cannot be completed
stays pending, and stops only those that touch its objects.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any


class Operation(ABC):
    """A kind of operation. Its methods see the service's own state.

    Attributes:
        kind: name, without spaces.
        has_intent: False: it has no actions, so that its results, which are appended in one step and applied
            then, are its commit point.
    """

    kind: str
    has_intent: bool = True

    @abstractmethod
    def compute(self, request: Any) -> bytes:
        """Return the payload of the intent; it changes nothing. What it raises refuses the request."""

    @abstractmethod
    def apply(self, payload: bytes) -> None:
        """Change the local state. It may be called again with the same payload."""

    @abstractmethod
    def objects(self, payload: bytes) -> Iterable[str]:
        """Return the names of the objects that the payload of a result describes."""

    def obsolete(self, payload: bytes) -> Iterable[str]:
        """Return the objects whose earlier entries become invalid, from the payload of `compute`."""
        return self.objects(payload)

    def actions(self, payload: bytes, epoch: int) -> Sequence[Callable[[], Any]]:
        """Return the effects on other processes, each of which may be called again; coroutine functions too.

        Args:
            payload: of the intent.
            epoch: of the leader, for the guards of these processes.
        """
        return ()

    def result(self, payload: bytes) -> bytes | None:
        """Return the payload of the entry that remains; None: none does, and the objects are retracted."""
        return payload

    def results(self, payload: bytes) -> Sequence[bytes]:
        """Return the payloads of the entries that remain, if they may be several."""
        result = self.result(payload)
        return () if result is None else (result,)
