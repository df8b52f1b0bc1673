"""AsyncCounter: numbers that are never given twice, on an event loop."""

from nyala.aio.journals.journal import AsyncJournal
from nyala.client.journal.builder import StepParts
from nyala.common.errors import ConditionFailed
from nyala.recipes.counter import CounterKey


class AsyncCounter:
    """A counter in a key of a journal; see `nyala.recipes.Counter`.

    Args:
        journal: the journal.
        key: name of the key; it has the next number, in decimal digits.
    """

    def __init__(self, journal: AsyncJournal, key: str) -> None:
        self._journal = journal
        self._key = CounterKey(journal.id, key)

    async def take(self, step: StepParts, count: int = 1) -> int:
        """Take numbers in a step of the caller; returns and raises as `nyala.recipes.Counter.take`.

        Args:
            step: gets a condition and a change. If it fails with ConditionFailed, make another one.
            count: of numbers.
        """
        taken = self._key.taken_in(step, count)
        key = None if taken is not None else await self._journal.get(self._key.name)
        return self._key.take(step, count, taken, key)

    async def next(self, count: int = 1) -> int:
        """Return a number, or the first of so many, that was never returned before.

        If it is cancelled, or the outcome of its step is unknown, the numbers may be skipped.
        """
        while True:
            step = self._journal.atomically()
            first = await self.take(step, count)
            try:
                await step.send()
            except ConditionFailed:  # another process was faster
                continue
            return first
