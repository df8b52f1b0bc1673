"""Clients at work on a journal: writers, readers, racers with one condition, tails, watches."""

import asyncio
import random
from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import aclosing

from nyala.common.errors import LogGone, NotFound, OutcomeUnknown, Retryable
from nyala.journal import steps
from tests.sim.journals.client import JournalClient
from tests.sim.journals.history import GONE, GetKey, ListKeys, ListLogs, Query, ReadLog
from tests.sim.journals.tails import Batch, Following
from tests.unit.journal.journal_model import KEYS, LOGS, Model, ModelLog, draw_step

RACE = "race"
"""Log of the racers."""
STALE_MS = (200, 1000, 3000)
STEPS_PER_S = 2
"""Steps of a worker that take effect in a second; one with fewer works faster."""
HURRY_US = 20_000.0
"""Mean time between two operations of a worker with too few, in microseconds."""
DROP_RATE = 0.15
"""Share of the deletions of logs that are sent; others would leave hardly any entries."""


class Actor(ABC):
    """One client at work.

    Args:
        client: sends its requests.
        rng: source of the choices.
        pause_us: mean time between two operations.

    Attributes:
        stopped: it ends as soon as it is idle.
        lost: the journal was dropped, or its tablet replaced.
        answered: number of operations that were answered.
    """

    def __init__(self, client: JournalClient, rng: random.Random, pause_us: float) -> None:
        self.client = client
        self.rng = rng
        self.pause_us = pause_us
        self.stopped = self.lost = False
        self.answered = 0

    @property
    def behind(self) -> bool:
        """True if it has to work faster."""
        return False

    async def run(self) -> None:
        """Work until `stopped`, or until the journal is dropped."""
        while not self.stopped and not self.lost:
            pause_us = min(self.pause_us, HURRY_US) if self.behind else self.pause_us
            await self.client.loop.delay(self.rng.expovariate(1 / pause_us))
            try:
                await self.once()
            except NotFound:
                self.lost = True
            self.lost = self.lost or self.client.replaced

    @abstractmethod
    async def once(self) -> None:
        """Do one thing."""


def check_working(tasks: Iterable["asyncio.Task[None]"]) -> None:
    """Raise the error with which a client ended: without it only the lack of answers is reported."""
    for task in tasks:
        if task.done():
            task.result()


class Worker(Actor):
    """Sends steps of all kinds, based on its assumed state, and reads."""

    def __init__(self, client: JournalClient, rng: random.Random, pause_us: float) -> None:
        super().__init__(client, rng, pause_us)
        self._belief = Model()
        self._began = client.loop.time()
        self._done = 0

    @property
    def behind(self) -> bool:
        """True if too few of its steps took effect for the time of the run to count."""
        return self._done < STEPS_PER_S * (self.client.loop.time() - self._began)

    async def once(self) -> None:
        """Send a step, or several at once, which may share an operation; or read."""
        which = self.rng.random()
        if which < (0.5 if self.behind else 0.08):
            await asyncio.gather(*(self._step() for _ in range(self.rng.randrange(2, 6))))
        elif which < 0.55:
            await self._step()
        else:
            await self._read()

    async def _step(self) -> None:
        step = draw_step(self.rng, self._belief)
        kept = [
            c
            for c in step.changes
            if not isinstance(c, steps.DeleteLog) or self.rng.random() < DROP_RATE
        ]
        if not kept:
            return
        step = steps.Step(step.conditions, kept)
        result = await self.client.step(step)
        if result is None and self.rng.random() < 0.7:
            result = await self.client.step(step)  # settled, if it had a condition
        self.answered += result is not None
        if isinstance(result, steps.Done):
            self._done += 1
            first = next((i for i in result.ids if i), 0)
            self._belief.apply(steps.Step((), kept), first)
        elif isinstance(result, steps.Full):
            await self._free()

    async def _free(self) -> None:
        """Invalidate the entries of a log that it knows, or replace the log."""
        name = self.rng.choice((*LOGS, RACE))
        known = self._belief.logs.pop(name, None)
        change = steps.Invalidate(name, tuple(known.entries) if known else ())
        await self.client.step(
            steps.Step((), [change if self.rng.random() < 0.7 else steps.DeleteLog(name)])
        )

    async def _read(self) -> None:
        rng, belief = self.rng, self._belief
        log = rng.choice((*LOGS, RACE))
        known = belief.logs.get(log)
        created = known.created if known is not None and rng.random() < 0.3 else 0
        after = rng.choice((0, 0, known.last if known else 0, max(0, belief.last - (5 << 30))))
        what: Query = rng.choice(
            (
                ReadLog(log, created, after, 0, rng.choice((0, 0, 3))),
                ReadLog(log),
                ReadLog(log, 0, 1 << 63, 0, 1),
                GetKey(rng.choice(KEYS)),
                ListKeys(rng.choice(("k", "z", ""))),
                ListLogs(),
            )
        )
        max_age_ms = rng.choice(STALE_MS) if rng.random() < 0.35 else 0
        answer = await self.client.read(what, max_age_ms)
        self.answered += answer is not None or isinstance(what, GetKey)
        if answer == GONE:
            belief.logs.pop(log, None)
        elif isinstance(what, ReadLog) and not what.after and isinstance(answer, tuple):
            found, last, entries, _ = answer
            belief.logs.pop(log, None)
            if found:
                belief.logs[log] = ModelLog(found, last, dict(entries))
                belief.last = max(belief.last, last)
        elif isinstance(what, ListKeys) and not what.prefix and isinstance(answer, tuple):
            belief.keys = {key: (version, value) for key, version, value in answer}


class Racer(Actor):
    """Reads the last id of one log, and appends if it is the last still; retires its entry before."""

    def __init__(self, client: JournalClient, rng: random.Random, pause_us: float) -> None:
        super().__init__(client, rng, pause_us)
        self._mine: list[int] = []

    async def once(self) -> None:
        """Race once, with the same condition again if the outcome is unknown."""
        answer = await self.client.read(ReadLog(RACE, 0, 1 << 63, 0, 1))
        if not isinstance(answer, tuple):
            return
        last, data = answer[1], self.client.name.encode()
        for _ in range(3):
            append = steps.Append(RACE, data, self._mine[:1])
            result = await self.client.step(steps.Step([steps.LogLast(RACE, last)], [append]))
            self.answered += result is not None
            if isinstance(result, steps.Done):
                self._mine = [*self._mine[1:], result.ids[0]]
                return
            if isinstance(result, steps.Failed):
                last = result.actual
                if self.rng.random() < 0.5:
                    return


class TailReader(Actor):
    """Follows a log, pauses, and continues after the last id; often long enough to be rebased."""

    def __init__(
        self, client: JournalClient, rng: random.Random, pause_us: float, log: str
    ) -> None:
        super().__init__(client, rng, pause_us)
        self._log = log
        self._begin()

    def _begin(self) -> None:
        """Begin with another reader of the log, which holds nothing."""
        client = self.client
        self._reader = client.core.log(client.journal, self._log)
        self.following = Following(f"{client.name}#{len(client.history.tails)}", self._log)
        client.history.tails.append(self.following)

    async def once(self) -> None:
        """Follow the log for a while."""
        if self.rng.random() < 0.1:
            self._begin()
        await self.follow(self.rng.expovariate(1 / self.rng.choice((0.2, 1, 4))))
        if self.rng.random() < 0.3:
            await self.client.loop.delay(self.rng.expovariate(1 / 5) * 1e6)

    async def follow(self, seconds: float) -> None:
        """Follow the log for some time, from the last id on."""
        client, following, loop = self.client, self.following, self.client.loop
        following.batches.append(Batch(loop.time(), after=following.last))
        try:
            async with (
                asyncio.timeout(seconds),
                aclosing(client.core.tail(self._reader, following.last)) as pages,
            ):
                async for events in pages:
                    if client.replaced:
                        return
                    following.created = self._reader.created
                    following.take(loop.time(), events)
                    client.history.done["tail events"] += len(events)
                    client.history.done["rebases"] += type(events[0]).__name__ == "Rebased"
                    self.answered += 1
                    if self.rng.random() < 0.1:
                        await loop.delay(self.rng.expovariate(1 / 300_000))
        except TimeoutError:
            if not client.replaced:
                following.created = self._reader.created
        except LogGone:
            if client.replaced:
                return
            following.created = self._reader.created
            following.batches.append(Batch(loop.time(), gone=True))
            client.history.done["log gone"] += 1
            self._begin()
        except (Retryable, OutcomeUnknown):
            client.history.done["tail ended"] += 1

    def caught_up(self, model: Model) -> bool:
        """Return whether it holds the valid entries; a deleted log may be held until its end is reported."""
        log = model.logs.get(self._log)
        created = self.following.created
        if log is None:
            return not created and not self.following.held
        return created == log.created and self.following.held == log.entries


class WatchReader(Actor):
    """Follows the keys with a prefix, pauses, and continues after the last version."""

    def __init__(
        self, client: JournalClient, rng: random.Random, pause_us: float, prefix: str
    ) -> None:
        super().__init__(client, rng, pause_us)
        self._prefix = prefix
        self.following = Following(client.name, prefix)
        client.history.watches.append(self.following)

    async def once(self) -> None:
        """Follow the keys for a while."""
        await self.follow(self.rng.expovariate(1 / self.rng.choice((0.2, 1, 4))))
        if self.rng.random() < 0.3:
            await self.client.loop.delay(self.rng.expovariate(1 / 5) * 1e6)

    async def follow(self, seconds: float) -> None:
        """Follow the keys for some time, from the last version on."""
        client, following, loop = self.client, self.following, self.client.loop
        if not following.synced:  # its keys are not the state as of any id
            following.last = 0
            following.keys.clear()
        following.batches.append(Batch(loop.time(), after=following.last))
        try:
            async with (
                asyncio.timeout(seconds),
                aclosing(client.core.watch(client.journal, self._prefix, following.last)) as pages,
            ):
                async for events in pages:
                    if client.replaced:
                        return
                    following.take(loop.time(), events)
                    client.history.done["syncs"] += type(events[0]).__name__ == "Synced"
                    client.history.done["watch events"] += len(events)
                    self.answered += 1
        except TimeoutError:
            return
        except (Retryable, OutcomeUnknown):
            client.history.done["watch ended"] += 1

    def caught_up(self, model: Model) -> bool:
        """Return whether it holds the keys that are there."""
        expected = {k: v for k, v in model.keys.items() if k.startswith(self._prefix)}
        return self.following.keys == expected
