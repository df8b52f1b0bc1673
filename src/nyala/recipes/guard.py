"""Guard: refusal of requests of leaders that another one has replaced."""

import threading

from nyala.client.checks import is_int
from nyala.common.errors import InvalidArgument, StaleEpoch


class EpochGuard:
    """Highest epoch that a server has seen; requests with a lower one are refused. Any thread may call.

    A leader that was paused after it had last looked at its leadership may send a request later. The
    condition of its steps protects the journal from it; a guard in every server that it sends requests to
    protects these.

    Args:
        epoch: highest epoch known at the start; a server that was restarted takes the one that it has stored,
            or that of `Leader.current`.

    Raises:
        InvalidArgument: it is no epoch.
    """

    def __init__(self, epoch: int = 0) -> None:
        self._lock = threading.Lock()
        self._epoch = _checked(epoch)

    @property
    def epoch(self) -> int:
        """Highest epoch seen; 0: none."""
        return self._epoch

    def check(self, epoch: int) -> None:
        """Accept a request with this epoch, and refuse lower ones from now on.

        Raises:
            StaleEpoch: a request with a higher epoch was seen before.
            InvalidArgument: it is no epoch.
        """
        epoch = _checked(epoch)
        with self._lock:
            if epoch < self._epoch:
                raise StaleEpoch(
                    f"the request has epoch {epoch}, and one with epoch {self._epoch} has been seen; its "
                    "sender does not lead any more: stop, or take part in an election again",
                    {"epoch": str(self._epoch)},
                )
            self._epoch = epoch


def _checked(epoch: int) -> int:
    if not is_int(epoch) or not 0 <= epoch < 1 << 64:
        raise InvalidArgument(
            f"epoch={epoch!r} is no epoch; give the `epoch` of a Leader, a whole number from 0 on"
        )
    return int(epoch)


Guard = EpochGuard
"""Public name of `EpochGuard`."""
