"""Ledger of a pipeline: its last run, and the steps of it that are done, in one log of a journal.

Each entry is the result of an operation that has no intent: the driver appends it after the effect of a step.
A driver that ends between the two leaves a step that the next one repeats, with the same keys for its writes.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from nyala.client.journal.journal import Journal
from nyala.common.errors import InvalidArgument
from nyala.recipes.operations.operation import Operation
from nyala.recipes.records import operation_record

RUN = "run"
STEP = "step "
"""Beginning of the name of the object of a step; the name of the step follows."""
MAX_RESULT_BYTES = 100_000


@dataclass(frozen=True, slots=True)
class RunState:
    """The last run of a pipeline.

    Attributes:
        id: names it.
        keys: part of the keys of its writes.
        steps: names of its steps, in order.
        ended: all of them are done.
        done: result of each step that is done.
    """

    id: str
    keys: str
    steps: tuple[str, ...]
    ended: bool
    done: dict[str, Any]


class Ledger:
    """State of the log of a pipeline, and the operations that change it."""

    def __init__(self) -> None:
        self._objects: dict[str, dict[str, Any]] = {}
        self.operations = [_Begin(self._objects), _StepDone(self._objects), _End(self._objects)]

    def retract(self, name: str) -> None:
        """Forget an object that no entry describes any more."""
        self._objects.pop(name, None)

    @property
    def state(self) -> RunState | None:
        """The last run; None: there was none."""
        found = self._objects.get(RUN)
        if found is None:
            return None
        done = {
            one["step"]: one["result"]
            for name, one in self._objects.items()
            if name.startswith(STEP) and one["run"] == found["id"]
        }
        return RunState(found["id"], found["keys"], tuple(found["steps"]), found["ended"], done)


class _Kept(Operation):
    """An operation whose payload is a JSON object that stays in the log.

    Args:
        objects: of the ledger, by name.
    """

    has_intent = False

    def __init__(self, objects: dict[str, dict[str, Any]]) -> None:
        self._all = objects

    def compute(self, request: dict[str, Any]) -> bytes:
        """Return the payload."""
        return json.dumps(request).encode()

    def apply(self, payload: bytes) -> None:
        """Take the object."""
        found = json.loads(payload)
        self._all[self._name(found)] = found

    def objects(self, payload: bytes) -> list[str]:
        """Return the name of the object."""
        return [self._name(json.loads(payload))]

    def _name(self, found: dict[str, Any]) -> str:
        return STEP + found["step"] if "step" in found else RUN


class _Begin(_Kept):
    """Beginning of a run, which makes everything of the one before obsolete."""

    kind = "begin"

    def obsolete(self, payload: bytes) -> Iterable[str]:
        """Return the objects of the run before."""
        return [RUN, *(name for name in self._all if name != RUN)]


class _StepDone(_Kept):
    """A step that is done, with its result."""

    kind = "step"


class _End(_Kept):
    """End of a run."""

    kind = "end"


def read_state(journal: Journal, log: str) -> RunState | None:
    """Return the last run by the entries of a log; None: there was none.

    Args:
        journal: of the log.
        log: its name.
    """
    ledger = Ledger()
    kinds = {one.kind: one for one in ledger.operations}
    for entry in journal.log(log).read():
        record = operation_record(entry.data)
        if record is not None and record.kind in kinds:
            kinds[record.kind].apply(record.payload)
    return ledger.state


def checked_result(step: str, result: Any) -> Any:
    """Return the result of a step as JSON gives it back.

    Args:
        step: name of the step.
        result: of its function.

    Raises:
        InvalidArgument: JSON cannot hold it, or it is too large.
    """
    try:
        text = json.dumps(result)
    except (TypeError, ValueError) as err:
        raise InvalidArgument(
            f"step {step!r} returned a {type(result).__name__}, which the ledger cannot keep ({err}); return "
            "None, or what JSON can hold, for instance numbers, texts and lists of them"
        ) from None
    if len(text) > MAX_RESULT_BYTES:
        raise InvalidArgument(
            f"step {step!r} returned {len(text):,} characters, more than {MAX_RESULT_BYTES:,}; write them to "
            "a table, and return its name"
        )
    return json.loads(text)
