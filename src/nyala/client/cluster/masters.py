"""Find and follow the leader master; one reachable master is enough (S0.29).

A call goes to the master believed to lead. `NotLeader` names another or none; an unreachable one is
passed over; every full round without a leader waits a little longer, until the deadline.
A look-up that may be somewhat old is answered by any master while the leader is not (S0.86).
"""

from collections.abc import Iterable, Sequence
from typing import Any

from nyala.client.cluster.finding import CALL_TIMEOUT_MS, Finder
from nyala.client.deadline import Attempts
from nyala.common import addresses
from nyala.common.errors import (
    InvalidArgument,
    NotLeader,
    OutcomeUnknown,
    Retryable,
    TimedOut,
    may_have_arrived,
)
from nyala.env.env import Env
from nyala.env.rpc import Method

SOON_MS = 250
"""First try of a question that any master answers: who hangs is passed over; doubled with each round."""
MAX_HOPS = 3
"""Leader hints followed without a pause: two masters that point at each other must not spin."""


def parse_addresses(masters: str | Sequence[str]) -> list[str]:
    """Return the addresses of "host:port,host:port" or of a sequence of them.

    Raises:
        InvalidArgument: none given, or one without a port.
    """
    parts = masters.split(",") if isinstance(masters, str) else list(masters)
    found = [p.strip() for p in parts if p.strip()]
    for address in found:
        addresses.parse(address)
    if not found:
        raise InvalidArgument(
            "no master address: pass nyala.connect('host:port,...') or set NYALA_MASTERS"
        )
    return list(dict.fromkeys(found))


class Masters(Finder):
    """The masters as one client sees them. Runs on the client's loop.

    Args:
        env: calls and time.
        given: addresses of the masters, as the user gave them.
    """

    def __init__(self, env: Env, given: Iterable[str]) -> None:
        super().__init__(env, given)
        self._unheard = ""  # who did not answer last
        self._defined = 0

    def _order(self) -> list[str]:
        first = [self._leader] if self._leader else []
        return first + [a for a in self.addresses if a != self._leader]

    async def look_up(
        self, method: Method, request: Any, *, max_age_ms: int, timeout_ms: int
    ) -> Any:
        """Ask the leader master, or whichever can tell what was so at most `max_age_ms` ago.

        The leader is asked first. Another's answer has all that this client has defined. That something
        is not there only the leader says.

        Raises:
            TimedOut: no master led, or knew enough, within the time.
            NyalaError: as `call`.
        """
        if max_age_ms:
            request.staleness.max_age_ms = max_age_ms
            request.staleness.not_before = self._defined
        patience_ms = SOON_MS if max_age_ms else CALL_TIMEOUT_MS
        return await self._call(method, request, timeout_ms, patience_ms)

    async def define(self, method: Method, request: Any, *, timeout_ms: int) -> Any:
        """Call the leader master to define something; later look-ups will know of it. Raises as `change`."""
        answer = await self.change(method, request, timeout_ms=timeout_ms)
        self._defined = max(self._defined, answer.at)
        return answer

    async def change(self, method: Method, request: Any, *, timeout_ms: int) -> Any:
        """Call the leader master for something that changes what it knows, until the deadline.

        Raises:
            OutcomeUnknown: no answer in time, and some try may have reached a master that carries it out.
            NyalaError: as `call`; nothing was changed.
        """
        return await self._call(method, request, timeout_ms, CALL_TIMEOUT_MS, changes=True)

    async def call(self, method: Method, request: Any, *, timeout_ms: int) -> Any:
        """Ask the leader master, wherever it is, until the deadline.

        Raises:
            TimedOut: no master led within the time; the message says what each one last answered.
            NyalaError: the leader's own answer, when it is not one to retry.
        """
        return await self._call(method, request, timeout_ms, CALL_TIMEOUT_MS)

    async def _call(
        self,
        method: Method,
        request: Any,
        timeout_ms: int,
        patience_ms: int,
        *,
        changes: bool = False,
    ) -> Any:
        attempts = Attempts(self._env, timeout_ms)
        said: dict[str, str] = {}
        hops = 0
        unknown = False
        while True:
            hinted = False
            for address in self._order():
                left_ms = attempts.left_ms()
                if left_ms <= 0:
                    raise self._gave_up(method, timeout_ms, said, unknown=unknown)
                try:
                    answer = await self._env.rpc.call(
                        address, method, request, timeout_ms=min(left_ms, patience_ms)
                    )
                except NotLeader as err:
                    said[address] = "does not lead"
                    if err.details.get("reason"):  # why it could not answer all the same
                        said[address] = err.message
                    hinted = self._follow(address, err.address)
                    if hinted:
                        break  # the hint is a new first choice
                except (Retryable, OutcomeUnknown) as err:
                    # A definition carries its number: sent again, it takes effect once.
                    said[address] = err.message
                    unknown |= changes and may_have_arrived(err)
                    self._silent(address)
                else:
                    self._heard(address, answer)
                    self._keep_learning()
                    return answer
            patience_ms = min(2 * patience_ms, CALL_TIMEOUT_MS)
            hops += hinted
            if hinted and hops <= MAX_HOPS:
                continue
            await self._learn(attempts)
            if not await attempts.pause():
                raise self._gave_up(method, timeout_ms, said, unknown=unknown)

    def _follow(self, told_by: str, hint: str | None) -> bool:
        """Take a leader hint; return whether it is worth trying before the rest."""
        if not hint or hint in (told_by, self._leader):
            if self._leader == told_by:
                self._leader = None
            return False
        self.addresses.add([hint])
        self._leader = hint
        return True

    def _silent(self, address: str) -> None:
        """Who does not answer is asked last from now on."""
        self._unheard = address
        if self._leader == address:
            self._leader = None
        self.addresses.silent(address)

    def _heard(self, address: str, answer: Any) -> None:
        """Whoever answers leads, unless the answer says that it follows; then it may name who does."""
        if self._unheard == address:
            self._unheard = ""
        as_of = getattr(answer, "as_of", None)
        if as_of is None or not as_of.follower:
            self._leader = address
        elif as_of.leader_address != self._unheard:
            self._leader = as_of.leader_address or None

    def _gave_up(
        self, method: Method, timeout_ms: int, said: dict[str, str], *, unknown: bool
    ) -> TimedOut | OutcomeUnknown:
        heard = "; ".join(f"{a}: {s}" for a, s in said.items()) or "none was asked"
        what = method.path.rpartition("/")[2]
        text = (
            f"no leader master answered {what} within {timeout_ms} ms ({heard}). "
            "Check that a majority of masters runs: nyala status, or nyala cluster ksck"
        )
        if unknown:
            return OutcomeUnknown(
                f"{text}. A master may have begun to carry it out, or may yet: look whether it was done, "
                "before you call again"
            )
        return TimedOut(text)
