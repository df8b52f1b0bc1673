"""BroadcastList: a list with a version whose changes reach every member in order and without gaps."""

from collections.abc import Iterable
from dataclasses import dataclass

from nyala.client.checks import is_int
from nyala.client.journal.builder import StepParts, text_of
from nyala.client.journal.items import Key
from nyala.common.errors import InvalidArgument
from nyala.recipes.records import number_in

MAX_UPDATES = 100
"""Most updates of one message."""


@dataclass(frozen=True, slots=True)
class Update:
    """A change of the list.

    Attributes:
        version: version of the list after it.
        name: name of the item.
        value: None: the item was removed.
    """

    version: int
    name: str
    value: bytes | None


@dataclass(frozen=True, slots=True)
class ListMessage:
    """Message to a member.

    Attributes:
        version: version of the list after the message was applied.
        updates: in order; the first follows the version of the member.
        items: the full list, for a member that lacks updates that are known no more; else None.
    """

    version: int
    updates: tuple[Update, ...] = ()
    items: dict[str, bytes] | None = None


class BroadcastList:
    """The list at its leader. A change is part of a step of the leader, which also raises the version.

    Args:
        name: prefix of its keys: `<name>/version`, `<name>/item/<item>`.
        keys: the keys with this prefix, as `Journal.list(name + "/")` returns them.

    Attributes:
        version: number of changes; 0: there was none.
        items: the present list.

    Raises:
        Corrupt: its version is no number.
    """

    def __init__(self, name: str, keys: Iterable[Key] = ()) -> None:
        self._prefix = text_of("name", name) + "/"
        self.version = 0
        self.items: dict[str, bytes] = {}
        self._updates: list[Update] = []
        self._confirmed: dict[str, int] = {}
        for key in keys:
            if key.name == self._prefix + "version":
                self.version = number_in(key)
            elif key.name.startswith(self._prefix + "item/"):
                self.items[key.name.removeprefix(self._prefix + "item/")] = key.value or b""

    def change(self, step: StepParts, name: str, value: bytes | None) -> Update:
        """Add a change to a step; call `changed` when the step took effect, before the next change.

        Args:
            step: of the leader.
            name: name of the item.
            value: None: it is removed.

        Raises:
            InvalidArgument: the step has a change of the list already.
        """
        _, changes = step.parts
        if any(one.set.key == self._prefix + "version" for one in changes):
            raise InvalidArgument(
                f"the step has a change of list {self._prefix[:-1]!r} already, and each has a version of its "
                "own: send it, call changed(), and make another step"
            )
        update = Update(self.version + 1, text_of("name", name), value)
        step.set(self._prefix + "version", b"%d" % update.version)
        if value is None:
            step.delete(self._prefix + "item/" + name)
        else:
            step.set(self._prefix + "item/" + name, value)
        return update

    def changed(self, update: Update) -> None:
        """Take a change whose step took effect.

        Raises:
            InvalidArgument: it does not follow the version of the list.
        """
        if update.version != self.version + 1:
            raise InvalidArgument(
                f"the change has version {update.version}, and the list {self.version}; make a change, have "
                "its step take effect, and give it to changed() before the next one"
            )
        _apply(self.items, update)
        self.version = update.version
        self._updates.append(update)

    def joined(self, member: str, version: int = 0) -> None:
        """Take a member, which has this version, into account when updates are dropped."""
        self._confirmed[member] = self._version(version)

    def left(self, member: str) -> None:
        """Take a member into account no more."""
        self._confirmed.pop(member, None)
        self._prune()

    def confirmed(self, member: str, version: int) -> None:
        """Record the version that a member has answered with; updates that all members have are dropped."""
        if member in self._confirmed:
            self._confirmed[member] = max(self._confirmed[member], self._version(version))
            self._prune()

    def _version(self, version: int) -> int:
        if not is_int(version) or not 0 <= version <= self.version:
            raise InvalidArgument(
                f"version={version!r}: the list has version {self.version}, and a member has one from 0 to "
                "it; is the member of another list?"
            )
        return version

    def _prune(self) -> None:
        least = min(self._confirmed.values(), default=self.version)
        self._updates = [u for u in self._updates if u.version > least]

    @property
    def kept(self) -> int:
        """Number of updates that are kept for members."""
        return len(self._updates)

    def message(self, version: int) -> ListMessage | None:
        """Return what a member with this version is sent next; None: it has everything."""
        if self._version(version) == self.version:
            return None
        first = self._updates[0].version if self._updates else self.version + 1
        if version + 1 < first:
            return ListMessage(self.version, items=dict(self.items))
        updates = tuple(self._updates[version + 1 - first :][:MAX_UPDATES])
        return ListMessage(updates[-1].version, updates)


class BroadcastCopy:
    """The list at a member.

    Attributes:
        version: version of the list that it has.
        items: that list.
    """

    def __init__(self) -> None:
        self.version = 0
        self.items: dict[str, bytes] = {}

    def take(self, message: ListMessage) -> int:
        """Apply a message in order and without gaps; return the version for the answer.

        Updates that it has are skipped, those that do not follow change nothing.
        """
        if message.items is not None and message.version > self.version:
            self.version, self.items = message.version, dict(message.items)
        for update in message.updates:
            if update.version == self.version + 1:
                _apply(self.items, update)
                self.version = update.version
        return self.version


def _apply(items: dict[str, bytes], update: Update) -> None:
    if update.value is None:
        items.pop(update.name, None)
    else:
        items[update.name] = update.value
