"""Calls of a server to the leader master, at addresses of masters that may change while it runs."""

from collections.abc import Callable, Sequence
from typing import Any

from nyala.client.cluster.masters import Masters
from nyala.env.env import Env
from nyala.env.rpc import Method


class LeaderCalls:
    """Calls the leader master, which is remembered from one call to the next.

    Args:
        env: calls.
        addresses: returns the public addresses of the masters; asked at each call.
    """

    def __init__(self, env: Env, addresses: Callable[[], Sequence[str]]) -> None:
        self._env = env
        self._addresses = addresses
        self._masters: Masters | None = None

    async def call(self, method: Method, request: Any, *, timeout_ms: int) -> Any:
        """Call the leader master; raises as `Masters.call`.

        Args:
            method: method of the masters.
            request: its message.
            timeout_ms: deadline, from now.
        """
        if self._masters is None:
            self._masters = Masters(self._env, self._addresses())
        self._masters.addresses.add(self._addresses())
        return await self._masters.call(method, request, timeout_ms=timeout_ms)
