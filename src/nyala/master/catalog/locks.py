"""Locks of catalog operations: taken in one order, released in reverse order, waiters first in, first out.

These are the only locks of a master.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from nyala.master.catalog.plan import Scope


class Locks:
    """One lock per name, table and tablet that some operation holds or waits for. On the loop only."""

    def __init__(self) -> None:
        self._locks: dict[tuple[int, str], asyncio.Lock] = {}
        self._users: dict[tuple[int, str], int] = {}

    @asynccontextmanager
    async def hold(self, scope: Scope) -> AsyncIterator[None]:
        """Hold every lock of a scope: waits for them in order, releases them in reverse order."""
        held: list[tuple[int, str]] = []
        try:
            for key in scope.ordered():
                await self._take(key)
                held.append(key)
            yield
        finally:
            for key in reversed(held):
                self._locks[key].release()
                self._leave(key)

    def held(self) -> int:
        """Return how many locks are held or waited for."""
        return len(self._locks)

    def taken(self) -> list[tuple[int, str]]:
        """Return the locks that are held or waited for."""
        return list(self._locks)

    async def _take(self, key: tuple[int, str]) -> None:
        lock = self._locks.setdefault(key, asyncio.Lock())
        self._users[key] = self._users.get(key, 0) + 1
        try:
            await lock.acquire()
        except asyncio.CancelledError:
            self._leave(key)
            raise

    def _leave(self, key: tuple[int, str]) -> None:
        self._users[key] -= 1
        if not self._users[key]:
            del self._users[key], self._locks[key]
