"""Counter: numbers that are never given twice."""

from nyala.client.checks import is_int
from nyala.client.journal.builder import StepParts, text_of
from nyala.client.journal.items import Key
from nyala.client.journal.journal import Journal
from nyala.common.errors import ConditionFailed, InvalidArgument
from nyala.recipes.records import MAX_NUMBER, number_in

MAX_COUNT = 1 << 32
"""Most numbers of one call."""


class CounterKey:
    """The key of a counter, and the changes of it; nothing is read or sent.

    Args:
        journal_id: id of the journal.
        key: name of the key; it has the next number, in decimal digits.
    """

    def __init__(self, journal_id: str, key: str) -> None:
        self._journal_id = journal_id
        self.name = text_of("key", key)

    def taken_in(self, step: StepParts, count: int) -> int | None:
        """Return the next number after those that a step takes; None: it takes none, and the key is read.

        Args:
            step: takes numbers.
            count: of further numbers.

        Raises:
            InvalidArgument: as `Counter.take`.
        """
        if not is_int(count) or not 1 <= count <= MAX_COUNT:
            raise InvalidArgument(f"count={count!r}: give a number from 1 to {MAX_COUNT}")
        if step.journal_id != self._journal_id:
            raise InvalidArgument(
                f"counter {self.name!r} is of another journal than the step, and a step changes one journal: "
                "take the number in a step of the counter's journal"
            )
        _, changes = step.parts
        found = [
            c.set.value for c in changes if c.WhichOneof("what") == "set" and c.set.key == self.name
        ]
        return int(found[-1]) if found else None

    def take(self, step: StepParts, count: int, taken: int | None, key: Key | None) -> int:
        """Add to a step the condition and the change that take numbers; return the first.

        Args:
            step: gets them.
            count: of numbers.
            taken: what `taken_in` returned.
            key: as it was read if that was None; None: there is no such key.

        Raises:
            Corrupt, InvalidArgument: as `Counter.take`.
        """
        first = taken or (1 if key is None else number_in(key))
        if first + count > MAX_NUMBER:
            raise InvalidArgument(
                f"count={count}: counter {self.name!r} ends at {MAX_NUMBER}, and its next number is {first}"
            )
        if taken is None:
            step.require(key=self.name, version=0 if key is None else key.version)
        step.set(self.name, b"%d" % (first + count))
        return first


class Counter:
    """A counter in a key of a journal. Any thread may call.

    Nobody else may set or delete the key: a counter without its key begins at 1 again.

    Args:
        journal: the journal.
        key: name of the key; it has the next number, in decimal digits.
    """

    def __init__(self, journal: Journal, key: str) -> None:
        self._journal = journal
        self._key = CounterKey(journal.id, key)

    def take(self, step: StepParts, count: int = 1) -> int:
        """Take numbers in a step of the caller: they are taken if it takes effect, and else given again.

        Numbers that the step takes already are followed by others.

        Args:
            step: gets a condition and a change. If it fails with ConditionFailed, make another one.
            count: of numbers.

        Returns:
            The first number; the first of all is 1.

        Raises:
            Corrupt: the key has a value that is no number.
            InvalidArgument: the step is of another journal, or the counter has no such number.
        """
        taken = self._key.taken_in(step, count)
        key = None if taken is not None else self._journal.get(self._key.name)
        return self._key.take(step, count, taken, key)

    def next(self, count: int = 1) -> int:
        """Return a number, or the first of so many, that was never returned before.

        If the outcome of its step is unknown, which raises OutcomeUnknown, the numbers may be skipped.

        Raises:
            Corrupt: as `take`.
        """
        while True:
            step = self._journal.atomically()
            first = self.take(step, count)
            try:
                step.send()
            except ConditionFailed:  # another process was faster
                continue
            return first
