"""PendingOperations: operations whose intents are valid, and why those that have failed are not completed."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from nyala.common.errors import NotFound, Unavailable

RETRY_US = 1_000_000
"""Pause before an operation that has failed twice is tried again, in microseconds."""


@dataclass(frozen=True, slots=True)
class PendingOperation:
    """An operation that is committed, and not completed.

    Attributes:
        intent: id of its intent.
        kind: name of its kind.
        payload: of the intent.
        error: why the last try to complete it has failed; empty: there was none yet in this process.
    """

    intent: int
    kind: str
    payload: bytes
    error: str = ""


@dataclass(slots=True)
class _Pending:
    kind: str
    payload: bytes
    applied: bool = False
    failures: int = 0
    error: str = ""
    retry_us: int = 0


class PendingOperations:
    """Operations whose intents are valid, in their order."""

    def __init__(self) -> None:
        self._found: dict[int, _Pending] = {}

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self._found))

    def add(self, intent: int, kind: str, payload: bytes) -> None:
        """Take an intent.

        Args:
            intent: its id.
            kind: name of the kind.
            payload: of the intent.
        """
        self._found[intent] = _Pending(kind, payload)

    def get(self, intent: int) -> PendingOperation:
        """Return an operation.

        Raises:
            NotFound: it is completed or abandoned, or there was none.
        """
        found = self._found.get(intent)
        if found is None:
            raise NotFound(
                f"no operation with the intent {intent} is pending; it is completed or abandoned, or this "
                "process has not called take_over since it was established; see pending()"
            )
        return PendingOperation(intent, found.kind, found.payload, found.error)

    def every(self) -> list[PendingOperation]:
        """Return all, in the order of their intents."""
        return [self.get(one) for one in self]

    def remove(self, intent: int) -> PendingOperation | None:
        """Remove an operation; return it if this process has applied it to its state, else None."""
        found = self._found.pop(intent, None)
        if found is None or not found.applied:
            return None
        return PendingOperation(intent, found.kind, found.payload, found.error)

    def applied(self, intent: int) -> None:
        """Note that this process applies it to its state."""
        self._found[intent].applied = True

    def failed(self, intent: int, error: Exception, now_us: int) -> None:
        """Note that it could not be completed: the next try is at once, later ones after a pause.

        Args:
            intent: id of its intent.
            error: why.
            now_us: present time.
        """
        found = self._found.get(intent)
        if found is not None:
            found.retry_us = now_us + (RETRY_US if found.failures else 0)
            found.failures, found.error = found.failures + 1, f"{type(error).__name__}: {error}"

    def due(self, intent: int, now_us: int) -> bool:
        """Return whether it is to be tried (again)."""
        return now_us >= self._found[intent].retry_us


def refuse_touching(
    kind: str, objects: set[str], other: PendingOperation, its: Iterable[str]
) -> None:
    """Raise Unavailable if a new operation touches the objects of a pending one.

    Args:
        kind: of the new operation.
        objects: that it touches.
        other: the pending operation.
        its: objects of that.
    """
    common = sorted(objects.intersection(its))
    if common:
        raise Unavailable(
            f"{kind!r} has no effect: it touches {', '.join(map(repr, common[:3]))}, and so does "
            f"{other.kind!r}, which is committed (intent {other.intent}) and could not be completed: "
            f"{other.error}. Retry when it is; pending() shows it, retry() and abandon() end it"
        )
