"""Share of each caller in a resource of a server, so that one of them leaves room for the others. Pure."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from nyala.common.errors import Throttled

RETRY_AFTER_MS = 200


def _ignore() -> None:
    return


class Shares:
    """Counts what each caller uses of one resource.

    Args:
        what: the resource, for errors: "open scans".
        most: share of each caller; one use always has room, however large.
        option: name of the option that sets it.
        on_refused: called at each refusal, such as to count it.
    """

    def __init__(
        self, what: str, most: int, option: str, on_refused: Callable[[], None] = _ignore
    ) -> None:
        self._what = what
        self._most = most
        self._option = option
        self._on_refused = on_refused
        self._used: dict[str, int] = {}

    def used(self, caller: str) -> int:
        """Return what a caller uses now."""
        return self._used.get(caller, 0)

    def take(self, caller: str, amount: int = 1) -> None:
        """Count a use.

        Args:
            caller: name of the user, or address; empty: not counted.
            amount: what is used.

        Raises:
            Throttled: the caller has its share.
        """
        used = self.used(caller)
        if not caller:
            return
        if used and used + amount > self._most:
            self._on_refused()
            raise Throttled(
                f"{caller} has {used} {self._what} on this server, and may have {self._most} "
                f"({self._option}); retry when some have ended, or work with fewer at a time",
                {"retry_after_ms": str(RETRY_AFTER_MS)},
            )
        self._used[caller] = used + amount

    def release(self, caller: str, amount: int = 1) -> None:
        """End a use."""
        left = self.used(caller) - amount
        if left > 0:
            self._used[caller] = left
        else:
            self._used.pop(caller, None)

    @contextmanager
    def hold(self, caller: str, amount: int = 1) -> Iterator[None]:
        """Count a use until the block ends; see `take`."""
        self.take(caller, amount)
        try:
            yield
        finally:
            self.release(caller, amount)
