"""Recipes on an event loop: coordination of processes over a journal of `nyala.aio`."""

from nyala.aio.recipes.counter import AsyncCounter
from nyala.aio.recipes.leader import AsyncLeader
from nyala.aio.recipes.lease import AsyncLease, AsyncLock

__all__ = ["AsyncCounter", "AsyncLeader", "AsyncLease", "AsyncLock"]
