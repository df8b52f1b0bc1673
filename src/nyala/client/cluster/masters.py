"""RPCs to the leader master: discovery of the masters, leader hints, retries until a deadline.

A call goes to the last known leader first. `NotLeader` may name the leader; a master that does not answer
is skipped; after each round without a leader the pause grows, until the deadline. One reachable master is
enough.
A look-up that accepts a stale answer is answered by any master while there is no leader.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from nyala.client.cluster import first_contact
from nyala.client.cluster.first_contact import TRY_MS, SlowMasters
from nyala.client.cluster.known_masters import MasterAddresses
from nyala.client.deadline import Attempts, is_cut_short
from nyala.common import addresses
from nyala.common.errors import (
    InvalidArgument,
    NotLeader,
    NyalaError,
    OutcomeUnknown,
    Rejected,
    Retryable,
    Throttled,
    TimedOut,
    may_have_arrived,
)
from nyala.env.env import Env
from nyala.env.rpc import Method
from nyala.wire import methods
from nyala.wire.proto import nyala_pb2 as pb

CALL_TIMEOUT_MS = 5_000
"""Timeout of one attempt; the caller's deadline covers all of them."""
REFRESH_MS = 10_000
"""Minimum interval between two background refreshes of the masters' configuration, in milliseconds."""
FIRST_TRY_MS = 250
"""Timeout of the first attempt of a look-up that any master can answer; doubled with each round."""
MAX_HOPS = 3
"""Leader hints followed without a pause, so that two masters that name each other cause no busy loop."""


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


class Masters:
    """The masters of one cluster, as a client reaches them. Used on the client's loop only.

    Args:
        env: RPCs, time and tasks.
        given: addresses of masters, as the user gave them.

    Attributes:
        addresses: all addresses of masters known.
    """

    def __init__(self, env: Env, given: Iterable[str]) -> None:
        self._env = env
        self.addresses = MasterAddresses(given)
        self._learned_us = 0
        self._leader: str | None = None
        self._unresponsive = ""  # the address that failed to answer last
        self._defined = 0

    @property
    def known(self) -> list[str]:
        """Addresses of all masters known: those given, and those that any of them named."""
        return list(self.addresses)

    def now_us(self) -> int:
        """Return the monotonic time in microseconds, for the age of the masters' answers."""
        return self._env.clock.monotonic_us()

    def _refresh_in_background(self) -> None:
        """Refresh the masters' configuration in the background when it is `REFRESH_MS` old."""
        if self.now_us() - self._learned_us >= REFRESH_MS * 1000:
            self._learned_us = self.now_us()
            learn = self._fetch_config(Attempts(self._env, CALL_TIMEOUT_MS))
            self._env.tasks.spawn(learn, "learn who the masters are")

    async def reach(self, timeout_ms: int, slow: SlowMasters | None = None) -> None:
        """Wait until one master answers, and take the others' addresses from it.

        Args:
            timeout_ms: deadline, from now, unless one of them is slow.
            slow: for masters that accept connections and are silent; None: they are awaited no longer.

        Raises:
            Unavailable: none answers; the message says what happened at each address.
        """
        self._learn(await first_contact.reach(self._env, list(self.addresses), timeout_ms, slow))

    def _learn(self, status: pb.MasterStatusResponse) -> None:
        """Take over the masters' configuration, and their leader."""
        self._learned_us = self.now_us()
        self.addresses.apply_config(status.consensus)
        if status.leader_address in self.addresses:
            self._leader = status.leader_address

    async def _fetch_config(self, attempts: Attempts) -> None:
        """Get the masters' configuration from one of them, or else other addresses from tablet servers."""
        addresses = list(self.addresses)
        # An equal share of the time that is left, so that every address is tried before the deadline.
        try_ms = max(1, min(TRY_MS, attempts.left_ms() // max(1, len(addresses))))
        for address in addresses:
            try:
                self._learn(await first_contact.status(self._env, address, try_ms))
            except NyalaError:
                continue
            return
        await self._fetch_from_tservers(attempts)

    async def _fetch_from_tservers(self, attempts: Attempts) -> None:
        """Get masters' addresses from tablet servers, until one names a new one."""
        for address in dict.fromkeys(self.addresses.tservers()):
            try:
                info: pb.ServerInfoResponse = await self._env.rpc.call(
                    address, methods.SERVER_INFO, pb.ServerInfoRequest(),
                    timeout_ms=max(1, min(TRY_MS, attempts.left_ms())),
                )  # fmt: skip
            except NyalaError:
                continue
            if new := [a for a in info.master_addresses if a not in self.addresses]:
                self.addresses.add(new)
                return

    def _order(self) -> list[str]:
        first = [self._leader] if self._leader else []
        return first + [a for a in self.addresses if a != self._leader]

    async def look_up(
        self, method: Method, request: Any, *, max_age_ms: int, timeout_ms: int
    ) -> Any:
        """Call the leader master, or else any master whose state is at most `max_age_ms` old.

        The leader is tried first. A follower's answer includes all that this client has defined; only the
        leader answers `NotFound`.

        Args:
            method: method of the masters.
            request: with a `staleness` field.
            max_age_ms: greatest age of a follower's answer; 0: the leader's only.
            timeout_ms: deadline, from now.

        Returns:
            The response.

        Raises:
            TimedOut: no master led, or was fresh enough, within the time.
            NyalaError: as `call`.
        """
        if max_age_ms:
            request.staleness.max_age_ms = max_age_ms
            request.staleness.not_before = self._defined
        try_ms = FIRST_TRY_MS if max_age_ms else CALL_TIMEOUT_MS
        return await self._call(method, request, timeout_ms, try_ms)

    async def define(self, method: Method, request: Any, *, timeout_ms: int) -> Any:
        """Run a DDL request on the leader master; later look-ups of this client include its effect.

        Args:
            method: method of the masters.
            request: the definition.
            timeout_ms: deadline, from now.

        Returns:
            The response; its `at` is the catalog's version that later look-ups ask for.

        Raises:
            NyalaError: as `change`.
        """
        answer = await self.change(method, request, timeout_ms=timeout_ms)
        self._defined = max(self._defined, answer.at)
        return answer

    async def change(self, method: Method, request: Any, *, timeout_ms: int) -> Any:
        """Call the leader master with a request that changes its state, retrying until the deadline.

        Args:
            method: method of the masters.
            request: carries its own number, so that a retry takes effect once.
            timeout_ms: deadline, from now.

        Returns:
            The response.

        Raises:
            OutcomeUnknown: no answer in time, or a refusal, and some try without an answer may have reached a
                master that carries it out.
            NyalaError: as `call`; nothing was changed.
        """
        return await self._call(method, request, timeout_ms, CALL_TIMEOUT_MS, changes=True)

    async def call(self, method: Method, request: Any, *, timeout_ms: int) -> Any:
        """Call the leader master, retrying until the deadline.

        Args:
            method: method of the masters.
            request: a read; it may be sent more than once.
            timeout_ms: deadline, from now.

        Returns:
            The response.

        Raises:
            TimedOut: no master led within the time; the message has the last answer of each.
            Throttled: the wait that the leader asks for is longer than the time that is left.
            NyalaError: the leader's own answer, when it is not one to retry.
        """
        return await self._call(method, request, timeout_ms, CALL_TIMEOUT_MS)

    async def _call(
        self,
        method: Method,
        request: Any,
        timeout_ms: int,
        try_ms: int,
        *,
        changes: bool = False,
    ) -> Any:
        attempts = Attempts(self._env, timeout_ms)
        errors: dict[str, str] = {}
        hops = 0
        unknown = False
        while True:
            hinted = False
            for address in self._order():
                given_ms = min(attempts.left_ms(), try_ms)
                if given_ms <= 0:
                    raise _timed_out(method, timeout_ms, errors, unknown=unknown)
                try:
                    answer = await self._env.rpc.call(address, method, request, timeout_ms=given_ms)
                except NotLeader as err:
                    errors[address] = "does not lead"
                    if err.details.get("reason"):  # why it could not answer all the same
                        errors[address] = err.message
                    hinted = self._follow(address, err.address)
                    if hinted:
                        break  # the hint is a new first choice
                except (Retryable, OutcomeUnknown) as err:
                    if not unknown and _asks_for_more_than(err, attempts.left_ms()):
                        raise
                    # A definition carries its number: sent again, it takes effect once.
                    if address not in errors or not is_cut_short(err, given_ms):
                        errors[address] = err.message
                    unknown |= changes and may_have_arrived(err)
                    self._mark_unresponsive(address)
                except Rejected as err:
                    if unknown:
                        raise OutcomeUnknown(
                            f"{err.message}; an earlier try was not answered, and may yet take effect: check "
                            "whether it did before you retry"
                        ) from err
                    raise
                else:
                    self._mark_responsive(address, answer)
                    self._refresh_in_background()
                    return answer
            try_ms = min(2 * try_ms, CALL_TIMEOUT_MS)
            hops += hinted
            if hinted and hops <= MAX_HOPS:
                continue
            await self._fetch_config(attempts)
            if not await attempts.pause():
                raise _timed_out(method, timeout_ms, errors, unknown=unknown)

    def _follow(self, told_by: str, hint: str | None) -> bool:
        """Take a leader hint; return whether to try it before the other masters."""
        if not hint or hint in (told_by, self._leader):
            if self._leader == told_by:
                self._leader = None
            return False
        self.addresses.add([hint])
        self._leader = hint
        return True

    def _mark_unresponsive(self, address: str) -> None:
        """Move an address that did not answer to the end of the order."""
        self._unresponsive = address
        if self._leader == address:
            self._leader = None
        self.addresses.move_to_end(address)

    def _mark_responsive(self, address: str, answer: Any) -> None:
        """Record the leader: the master that answered, unless its response is a follower's."""
        if self._unresponsive == address:
            self._unresponsive = ""
        as_of = getattr(answer, "as_of", None)
        if as_of is None or not as_of.follower:
            self._leader = address
        elif as_of.leader_address != self._unresponsive:
            self._leader = as_of.leader_address or None


def _timed_out(
    method: Method, timeout_ms: int, errors: dict[str, str], *, unknown: bool
) -> TimedOut | OutcomeUnknown:
    failures = "; ".join(f"{a}: {s}" for a, s in errors.items()) or "no request was sent"
    what = method.path.rpartition("/")[2]
    text = (
        f"no leader master answered {what} within {timeout_ms} ms ({failures}). "
        "Check that a majority of masters runs: nyala status, or nyala cluster ksck"
    )
    if unknown:
        return OutcomeUnknown(
            f"{text}. A master may have executed it, or may still execute it: check whether it took effect "
            "before you retry"
        )
    return TimedOut(text)


def _asks_for_more_than(err: NyalaError, left_ms: float) -> bool:
    """Return whether an error asks to wait for longer than the time that is left, so that no retry helps."""
    return isinstance(err, Throttled) and float(err.details.get("retry_after_ms", 0)) > left_ms
