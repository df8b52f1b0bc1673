"""Who the masters are: learned from whichever answers, while they are added and removed."""

from collections.abc import Iterable

from nyala.client.cluster.known_masters import KnownMasters
from nyala.client.deadline import Attempts
from nyala.common.errors import NyalaError, Unavailable
from nyala.env.env import Env
from nyala.wire import methods
from nyala.wire.proto import nyala_pb2 as pb

CALL_TIMEOUT_MS = 5_000
"""One try; the caller's deadline covers all of them."""
LEARN_MS = 10_000
"""Who the masters are is asked so often at most, by the way of other calls."""


class Finder:
    """On the client's loop.

    Attributes:
        addresses: where masters are looked for.

    Args:
        env: calls and time.
        given: addresses of the masters, as the user gave them.
    """

    def __init__(self, env: Env, given: Iterable[str]) -> None:
        self._env = env
        self.addresses = KnownMasters(given)
        self._learned_us = 0
        self._leader: str | None = None

    @property
    def known(self) -> list[str]:
        """Addresses of all masters known: those given, and those that any of them named."""
        return list(self.addresses)

    def now_us(self) -> int:
        """Return the monotonic time by which answers of the masters grow old."""
        return self._env.clock.monotonic_us()

    def _keep_learning(self) -> None:
        """Masters are added and removed while a client runs: ask now and then who they are."""
        if self.now_us() - self._learned_us >= LEARN_MS * 1000:
            self._learned_us = self.now_us()
            learn = self._learn(Attempts(self._env, CALL_TIMEOUT_MS))
            self._env.tasks.spawn(learn, "learn who the masters are")

    async def reach(self, timeout_ms: int) -> None:
        """Make sure that some master answers, and learn of the others from it.

        Raises:
            Unavailable: none answers; the message says what happened at each address.
        """
        attempts = Attempts(self._env, timeout_ms)
        while True:
            said = await self._learn(attempts)
            if not said:
                return
            if not await attempts.pause():
                heard = "; ".join(f"{a}: {s}" for a, s in said.items())
                raise Unavailable(
                    f"no nyala master answers ({heard}). Check that the cluster runs: nyala status; and the "
                    "addresses: masters may have been added and removed since, and one that is still a "
                    "master's is enough (nyala master list names all)"
                )

    async def _learn(self, attempts: Attempts) -> dict[str, str]:
        """Ask the masters who belongs to them, so that one given address finds the others.

        Returns:
            Nothing when one answered, else what each said.
        """
        said: dict[str, str] = {}
        for address in self.addresses:
            try:
                status: pb.MasterStatusResponse = await self._env.rpc.call(
                    address, methods.MASTER_STATUS, pb.MasterStatusRequest(),
                    timeout_ms=max(1, min(1_000, attempts.left_ms())),
                )  # fmt: skip
            except NyalaError as err:
                said[address] = err.message
                continue
            self._learned_us = self.now_us()
            self.addresses.told(status.consensus)
            if status.leader_address in self.addresses:
                self._leader = status.leader_address
            return {}
        return {} if await self._ask_tservers(attempts) else said

    async def _ask_tservers(self, attempts: Attempts) -> bool:
        """No master that is known answers: whether a tablet server knows of others."""
        for address in dict.fromkeys(self.addresses.tservers()):
            try:
                info: pb.ServerInfoResponse = await self._env.rpc.call(
                    address, methods.SERVER_INFO, pb.ServerInfoRequest(),
                    timeout_ms=max(1, min(1_000, attempts.left_ms())),
                )  # fmt: skip
            except NyalaError:
                continue
            if new := [a for a in info.master_addresses if a not in self.addresses]:
                self.addresses.add(new)
                return True
        return False
