"""A model of a journal: dictionaries, without files and optimisations."""

import random
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from nyala.journal import steps
from nyala.journal.journal import JournalMachine

LOGS = ("a", "b", "c")
KEYS = ("k", "k/1", "k/2", "z")
UNLIMITED = 1 << 60
"""Limit of a journal's size that no step reaches, in bytes."""
ENTRY_BYTES, LOG_BYTES, KEY_BYTES = 32, 256, 64
"""Size of an entry, of a log and of a key beside their data and names, in bytes."""


@dataclass
class ModelLog:
    """A log: its identity and its valid entries."""

    created: int
    last: int
    entries: dict[int, bytes] = field(default_factory=dict)

    def size_bytes(self, name: str) -> int:
        """Return what the log takes."""
        entries = sum(ENTRY_BYTES + len(data) for data in self.entries.values())
        return LOG_BYTES + len(name.encode()) + entries


class Model:
    """Expected content of a journal after some steps.

    Attributes:
        limit_bytes: steps that grow the journal above it are refused.
        other_bytes: size of logs and keys that are left out of this model.
    """

    def __init__(self, limit_bytes: int = UNLIMITED) -> None:
        self.logs: dict[str, ModelLog] = {}
        self.keys: dict[str, tuple[int, bytes]] = {}
        self.last = 0
        self.limit_bytes = limit_bytes
        self.other_bytes = 0

    @property
    def size_bytes(self) -> int:
        """Size of all that is valid."""
        return (
            sum(log.size_bytes(name) for name, log in self.logs.items())
            + self._keys_bytes()
            + self.other_bytes
        )

    def _keys_bytes(self) -> int:
        return sum(KEY_BYTES + len(k.encode()) + len(v) for k, (_, v) in self.keys.items())

    def apply(self, step: steps.Step, stamp: int) -> steps.Result:
        """Apply a step, as documented."""
        for number, condition in enumerate(step.conditions):
            match condition:
                case steps.KeyVersion(key=key, version=wanted):
                    actual = self.keys.get(key, (0, b""))[0]
                case steps.LogLast(log=name, id=wanted):
                    actual = self.logs[name].last if name in self.logs else 0
                case steps.LogCreated(log=name, id=wanted):
                    actual = self.logs[name].created if name in self.logs else 0
            if actual != wanted:
                return steps.Failed(number, actual)
        if self.limit_bytes < UNLIMITED:
            growth = self._growth(step.changes, stamp)
            if growth > 0 and self.size_bytes + growth > self.limit_bytes:
                return steps.Full(self.size_bytes + growth, self.limit_bytes)
        return steps.Done([self._change(change, stamp) for change in step.changes])

    def _growth(self, changes: Iterable[steps.Change], stamp: int) -> int:
        """Return the bytes that changes add less those that they free.

        What a log gets and loses in the same step counts as added.
        """
        after = Model()
        after.last, after.keys = self.last, dict(self.keys)
        after.logs = {n: replace(log, entries=dict(log.entries)) for n, log in self.logs.items()}
        growth, created, there = -self._keys_bytes(), set[str](), set(self.logs)
        for change in changes:
            match change:
                case steps.Append(log=name, data=data):
                    growth += ENTRY_BYTES + len(data)
                    if name not in there | created:
                        created.add(name)
                        growth += LOG_BYTES + len(name.encode())
                case steps.DeleteLog(log=name):
                    there.discard(name)
            after._change(change, stamp)
        for name, log in self.logs.items():
            kept = after.logs.get(name)
            if kept is None or kept.created != log.created:
                growth -= log.size_bytes(name)
            else:
                gone = (d for i, d in log.entries.items() if i not in kept.entries)
                growth -= sum(ENTRY_BYTES + len(data) for data in gone)
        return growth + after._keys_bytes()

    def _change(self, change: steps.Change, stamp: int) -> int:
        new_id = max(self.last + 1, stamp)
        match change:
            case steps.Append(log=name, data=data, invalidates=ids):
                log = self.logs.setdefault(name, ModelLog(new_id, new_id))
                for one in ids:
                    log.entries.pop(one, None)
                log.entries[new_id] = data
                log.last = new_id
            case steps.Invalidate(log=name, ids=ids):
                if name not in self.logs:
                    return 0
                for one in ids:
                    self.logs[name].entries.pop(one, None)
                self.logs[name].last = new_id
            case steps.SetKey(key=key, value=value):
                self.keys[key] = (new_id, value)
            case steps.DeleteKey(key=key):
                if self.keys.pop(key, None) is None:
                    return 0
            case steps.DeleteLog(log=name):
                if self.logs.pop(name, None) is None:
                    return 0
        self.last = new_id
        return new_id

    def check(self, journal: JournalMachine) -> None:
        """Check that a journal has the same content."""
        state = journal.state
        assert state.last == self.last
        found = {
            log.name: (log.created, log.last, dict(log.entries.read(0, log.last)))
            for log in state.by_name()
        }
        assert found == {n: (g.created, g.last, g.entries) for n, g in self.logs.items()}
        keys = {k.key: (k.version, k.value) for k in state.keys.starting_with("")}
        assert keys == self.keys
        assert list(keys) == sorted(self.keys)


def draw_step(draw: random.Random, model: Model) -> steps.Step:
    """Return a random step: conditions that hold mostly, changes of any kind."""
    conditions: list[steps.Condition] = []
    for _ in range(draw.choice((0, 0, 1, 2))):
        log, key, off = draw.choice(LOGS), draw.choice(KEYS), draw.choice((0, 0, 0, 1))
        found = model.logs.get(log)
        conditions.append(
            draw.choice(
                (
                    steps.LogLast(log, (found.last if found else 0) + off),
                    steps.LogCreated(log, (found.created if found else 0) + off),
                    steps.KeyVersion(key, model.keys.get(key, (0, b""))[0] + off),
                )
            )
        )
    return steps.Step(
        conditions, [_draw_change(draw, model) for _ in range(draw.choice((1, 1, 2, 5)))]
    )


def _draw_change(draw: random.Random, model: Model) -> steps.Change:
    log, key = draw.choice(LOGS), draw.choice(KEYS)
    data = draw.randbytes(draw.choice((0, 1, 20, 300, 3000)))
    known = list(model.logs[log].entries) if log in model.logs else []
    ids = draw.sample(known, min(len(known), draw.choice((0, 1, 1, 3, 50))))
    if draw.random() < 0.1:
        ids.append(draw.randrange(model.last + 10))
    kinds = ("append",) * 12 + ("invalidate",) * 3 + ("set",) * 4 + ("delete",) * 2 + ("drop",)
    match draw.choice(kinds):
        case "append":
            return steps.Append(log, data, ids)
        case "invalidate":
            return steps.Invalidate(log, ids)
        case "set":
            return steps.SetKey(key, data)
        case "delete":
            return steps.DeleteKey(key)
        case _:
            return steps.DeleteLog(log)
