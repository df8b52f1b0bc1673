"""Conditions and changes of one step of a journal, and its sending by a thread or a coroutine."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import islice
from types import TracebackType
from typing import Any, Protocol

from nyala.client.checks import is_int
from nyala.client.journal.delivery import StepOutcome
from nyala.common.errors import InvalidArgument, TooLarge
from nyala.journal import steps
from nyala.wire.proto import journal_pb2 as pb

MAX_ID = (1 << 64) - 1
Send = Callable[[list[pb.JournalCondition], list[pb.JournalChange]], StepOutcome]
SendAsync = Callable[[list[pb.JournalCondition], list[pb.JournalChange]], Awaitable[StepOutcome]]


class Named(Protocol):
    """A log."""

    @property
    def name(self) -> str:
        """Name of the log."""
        ...

    @property
    def journal_id(self) -> str:
        """Id of its journal."""
        ...


class StepParts:
    """A step of a journal: all of it takes effect, or nothing.

    Methods that add a change return its position in `ids`. What no journal takes is refused here, so that it
    is neither copied nor sent.

    Args:
        journal_id: id of the journal.
    """

    def __init__(self, journal_id: str) -> None:
        self._journal_id = journal_id
        self._data_bytes = 0
        self._conditions: list[pb.JournalCondition] = []
        self._changes: list[pb.JournalChange] = []
        self._outcome: StepOutcome | None = None
        self._closed = False

    @property
    def ids(self) -> tuple[int, ...]:
        """Ids of the changes, in their order, once the step took effect; 0: there was nothing to delete.

        Raises:
            InvalidArgument: it has not taken effect.
        """
        return self._done().ids

    @property
    def timestamp(self) -> int:
        """Hybrid time of the step, once it took effect.

        Raises:
            InvalidArgument: it has not taken effect.
        """
        return self._done().timestamp

    @property
    def journal_id(self) -> str:
        """Id of the journal that it changes."""
        return self._journal_id

    @property
    def parts(self) -> tuple[list[pb.JournalCondition], list[pb.JournalChange]]:
        """Conditions and changes so far."""
        return self._conditions, self._changes

    def _done(self) -> StepOutcome:
        if self._outcome is None:
            raise InvalidArgument(
                "the step has not taken effect; read its ids after the with block"
            )
        return self._outcome

    def require(
        self,
        log: "Named | str | None" = None,
        *,
        last: int | None = None,
        created: int | None = None,
        key: str | None = None,
        version: int | None = None,
    ) -> None:
        """Add a condition on the state before the step; conditions are checked in order.

        Args:
            log: with `last` or `created`.
            last: id of the last change of the log, also of a bare invalidation; 0: there is no such log.
            created: id of the change that created the log; 0: there is no such log.
            key: with `version`.
            version: version of the key; 0: there is no such key.
        """
        self._check_open()
        given = [log is not None and last is not None, log is not None and created is not None,
                 key is not None and version is not None]  # fmt: skip
        parts = sum(v is not None for v in (log, last, created, key, version))
        if sum(given) != 1 or parts != 2:
            raise InvalidArgument(
                "a condition is require(log, last=id), require(log, created=id) or "
                "require(key=key, version=id); add several with several calls"
            )
        made = pb.JournalCondition()
        if key is not None:
            made.key_version.key = text_of("key", key)
            made.key_version.version = id_of("version", version)
        elif last is not None:
            made.log_last.log, made.log_last.id = self._log_of(log), id_of("last", last)
        else:
            made.log_created.log, made.log_created.id = self._log_of(log), id_of("created", created)
        _check_room("conditions", self._conditions)
        self._conditions.append(made)

    def append(self, log: "Named | str", data: Any, invalidates: Iterable[int] = ()) -> int:
        """Append an entry to a log, which is created if need be; entries of it become invalid.

        Args:
            log: the log.
            data: bytes.
            invalidates: ids of entries; those that are not valid are ignored.
        """
        made = pb.JournalChange()
        made.append.log = self._log_of(log)
        made.append.data = self._data_of("data", data, steps.MAX_ENTRY_BYTES)
        made.append.invalidates.extend(ids_of("invalidates", invalidates))
        return self._add(made)

    def invalidate(self, log: "Named | str", ids: Iterable[int]) -> int:
        """Make entries of a log invalid; the log's last id advances."""
        made = pb.JournalChange()
        made.invalidate.log = self._log_of(log)
        made.invalidate.ids.extend(ids_of("ids", ids))
        return self._add(made)

    def set(self, key: str, value: Any) -> int:
        """Give a key a value, which is bytes; its version is the id of this change."""
        made = pb.JournalChange()
        made.set.key = text_of("key", key)
        made.set.value = self._data_of("value", value, steps.MAX_VALUE_BYTES)
        return self._add(made)

    def delete(self, key: str) -> int:
        """Delete a key."""
        return self._add(pb.JournalChange(delete_key=text_of("key", key)))

    def delete_log(self, log: "Named | str") -> int:
        """Delete a log with all of its entries."""
        return self._add(pb.JournalChange(delete_log=self._log_of(log)))

    def _add(self, change: pb.JournalChange) -> int:
        self._check_open()
        _check_room("changes", self._changes)
        self._changes.append(change)
        return len(self._changes) - 1

    def _log_of(self, log: "Named | str | None") -> str:
        """Return the name of a log, given as a handle or by name."""
        if isinstance(log, str):
            return text_of("log", log)
        journal_id = getattr(log, "journal_id", None)
        if log is None or journal_id is None:
            raise InvalidArgument(
                f"log is a {type(log).__name__}; give a log of this journal, or its name"
            )
        if journal_id != self._journal_id:
            raise InvalidArgument(
                f"log {log.name!r} is of another journal (id {journal_id}); a step changes one journal: "
                "take its log(name), or make a step of the other journal"
            )
        return log.name

    def _data_of(self, what: str, value: Any, limit: int) -> bytes:
        """Return data as bytes.

        Args:
            what: name of the argument.
            value: the data.
            limit: most bytes.

        Raises:
            InvalidArgument: not bytes-like.
            TooLarge: above a limit.
        """
        if not isinstance(value, bytes | bytearray | memoryview):
            hint = "; encode it: .encode()" if isinstance(value, str) else ""
            raise InvalidArgument(f"{what} is a {type(value).__name__}, not bytes{hint}")
        size = memoryview(value).nbytes
        if size > limit:
            raise TooLarge(
                f"{what} has {size} bytes and may have {limit}; split it, or store it in a table"
            )
        if self._data_bytes + size > steps.MAX_STEP_BYTES:
            raise TooLarge(
                f"the step has over {steps.MAX_STEP_BYTES} bytes of data and values; make several steps"
            )
        self._data_bytes += size
        return bytes(value)

    def _check_open(self) -> None:
        if self._closed:
            raise InvalidArgument("the step was sent; begin another with journal.atomically()")

    def _close(self) -> None:
        self._check_open()
        self._closed = True


class StepBuilder(StepParts):
    """A step to be used in a `with` block, at whose end it is sent. Made by `Journal.atomically`.

    It is not sent if the block raised.

    Args:
        send: sends the step.
        journal_id: id of the journal.
    """

    def __init__(self, send: Send, journal_id: str) -> None:
        super().__init__(journal_id)
        self._send = send

    def send(self) -> StepOutcome:
        """Send the step, as the end of the `with` block does.

        Raises:
            ConditionFailed, JournalFull: nothing took effect.
            OutcomeUnknown: it may have taken effect.
        """
        self._close()
        self._outcome = self._send(self._conditions, self._changes)
        return self._outcome

    def __enter__(self) -> "StepBuilder":
        self._check_open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.send()
        else:
            self._closed = True


class AsyncStep(StepParts):
    """A step to be used in an `async with` block. Made by `AsyncJournal.atomically`.

    It is sent at the end of the block, unless the block raised.

    Args:
        send: sends the step.
        journal_id: id of the journal.
    """

    def __init__(self, send: SendAsync, journal_id: str) -> None:
        super().__init__(journal_id)
        self._send = send

    async def send(self) -> StepOutcome:
        """Send the step, as the end of the `async with` block does; raises as `StepBuilder.send`.

        If it is cancelled it may have taken effect, or may yet.
        """
        self._close()
        self._outcome = await self._send(self._conditions, self._changes)
        return self._outcome

    async def __aenter__(self) -> "AsyncStep":
        self._check_open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            await self.send()
        else:
            self._closed = True


def text_of(what: str, value: Any) -> str:
    """Return a name or key.

    Raises:
        InvalidArgument: it is no str, or has no UTF-8.
    """
    if not isinstance(value, str):
        raise InvalidArgument(f"{what} is a {type(value).__name__}; give a str")
    try:
        value.encode()
    except UnicodeEncodeError as err:
        raise InvalidArgument(f"{what} {value[:40]!r} has no UTF-8: {err.reason}") from err
    return value


def _check_room(what: str, parts: Sequence[object]) -> None:
    if len(parts) >= steps.MAX_STEP_CHANGES:
        raise InvalidArgument(
            f"a step may have {steps.MAX_STEP_CHANGES} {what}; make several steps"
        )


def id_of(what: str, value: Any) -> int:
    """Return an id, or 0.

    Raises:
        InvalidArgument: it is not an int of 64 bits, from 0 on.
    """
    if not is_int(value) or not 0 <= value <= MAX_ID:
        raise InvalidArgument(f"{what}={value!r} is no id; ids are whole numbers from 0 on")
    return int(value)


def ids_of(what: str, values: Iterable[int]) -> list[int]:
    """Return ids of entries.

    Raises:
        InvalidArgument: one of them is no id, or they are too many.
    """
    if not isinstance(values, Iterable) or isinstance(values, str | bytes):
        raise InvalidArgument(f"{what} is a {type(values).__name__}; give ids, for instance [3, 4]")
    found = [id_of(what, v) for v in islice(values, steps.MAX_INVALIDATED + 1)]
    if len(found) > steps.MAX_INVALIDATED:
        raise InvalidArgument(
            f"{what} has over {steps.MAX_INVALIDATED} ids, and a step may invalidate "
            f"{steps.MAX_INVALIDATED}; make several steps"
        )
    return found
