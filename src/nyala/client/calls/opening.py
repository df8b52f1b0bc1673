"""First contact of a new client with its cluster."""

from functools import partial

from nyala.client.cluster.first_contact import SlowMasters, explained
from nyala.client.cluster.masters import parse_addresses
from nyala.client.core import ClientCore, ClientOptions
from nyala.client.credentials import credentials_for
from nyala.env.env import system_env
from nyala.env.monotonic import monotonic_us
from nyala.wire.channels import GrpcRpc
from nyala.wire.limits import RpcLimits
from nyala.wire.tls.problem import accepts_connections, connection_problem

REACH_MS = 2_250
"""Time, in milliseconds, within which one of the masters' addresses must answer a new client.

A server that accepts a connection within it may answer later, until the deadline of the client's calls.
What a command has done before, such as imports, counts, so that its error comes within 3 s.
"""
LEAST_REACH_MS = 1_500
"""The least time for the answer, in milliseconds, however long the caller needed before."""


def reach_ms(spent_ms: int) -> int:
    """Return the time for the answer of one of the masters' addresses, in milliseconds.

    Args:
        spent_ms: what the caller needed before.
    """
    return max(LEAST_REACH_MS, REACH_MS - spent_ms)


class OpenClient:
    """A `ClientCore` with its connections. Made on the loop that will run it.

    Args:
        masters: "host:port,..."; one that answers is enough.
        options: see `ClientOptions`.

    Raises:
        InvalidArgument: an address is none, or the credentials of the environment are invalid.
    """

    def __init__(self, masters: str, options: ClientOptions) -> None:
        self._addresses, self._credentials = parse_addresses(masters), credentials_for(masters)
        limits = RpcLimits(queued_bytes=options.scan_ahead_bytes)
        self._rpc = GrpcRpc(limits, self._credentials)
        self.core = ClientCore(system_env(self._rpc), self._addresses, options)

    async def reach(self, began_us: int) -> None:
        """Wait until one of the masters answers; the client is unusable after an error.

        Args:
            began_us: monotonic time, in microseconds, at which the caller began.

        Raises:
            Unavailable: no master answers at these addresses.
            Unauthenticated: client and server do not agree on TLS.
            InvalidArgument: the addresses are of tablet servers, or of other ports.
        """
        left_ms, longest_ms = (
            reach_ms((monotonic_us() - began_us) // 1000),
            self.core.options.timeout_ms,
        )
        slow = SlowMasters(longest_ms, accepts_connections)
        reaching = self.core.masters.reach(min(left_ms, longest_ms), slow)
        problem = partial(connection_problem, credentials=self._credentials)
        await explained(reaching, self._addresses, problem)

    async def close(self) -> None:
        """End streams, tasks and connections."""
        await self.core.close()
        await self._rpc.close()
