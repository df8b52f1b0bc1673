"""The order in which the replicas of journals apply steps, and comparison of all replicas with the model.

Every replica applies the same steps with the same results, and has the same digest after each: before
and after restarts, flushes, merges and copies. No step is applied twice, and none that no client has sent.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

from nyala.common.ids import CommittedOperation, TabletId
from nyala.journal import changes, entries, merge, reads, steps
from nyala.journal.journal import JournalMachine
from nyala.journal.manifest import JournalInfo
from tests.unit.journal.journal_model import Model

SMALL = ((changes, "KEPT", 40), (merge, "MAX_FILES", 4), (reads, "PAGE_ITEMS", 25),
         (entries, "CHUNK_BYTES", 8000), (entries, "CHUNK_ROWS", 20))  # fmt: skip
"""Constants of journals so small that short runs have rebases, merges and many pages."""


@dataclass(frozen=True, slots=True)
class AppliedStep:
    """An operation as a replica applied it; `digest`: number of items and digest of the content after it."""

    index: int
    stamp: int
    payload: bytes
    result: bytes
    digest: tuple[int, int] | None


class JournalOrder:
    """Applied operations of one journal, by their indexes in the group's log.

    Args:
        info: definition of the journal before them.
    """

    def __init__(self, info: JournalInfo) -> None:
        self.model = Model(info.limit_bytes)
        self._version = info.version
        self.results: dict[bytes, steps.Result] = {}
        self.newest = 0
        self._applied: dict[int, AppliedStep] = {}

    def note(self, one: AppliedStep) -> None:
        """Compare one replica's operation with that of the replica that applied it first."""
        kept = self._applied.get(one.index)
        if kept is not None:
            assert kept == one, f"a replica applied {one} where another applied {kept}"
            return
        assert one.index > self.newest, f"{one} is new below {self.newest}"
        self.newest = one.index
        self._applied[one.index] = one
        operation = steps.decode(one.payload)
        if isinstance(operation, steps.Step):
            self.apply(operation, one.stamp, steps.decode_result(one.result))
        elif isinstance(operation, steps.Batch):
            results = steps.decode_results(one.result)
            for step, result in zip(operation.steps, results, strict=True):
                self.apply(step, one.stamp, result)
        elif operation.version > self._version:
            self._version, self.model.limit_bytes = operation.version, operation.limit_bytes

    def apply(self, step: steps.Step, stamp: int, result: steps.Result) -> None:
        """Compare a step's result with that of the model; each step is sent once by these clients."""
        payload = steps.encode_step(step)
        again = self.results.get(payload)
        assert again is None, f"applied twice: {step}, first with {again}"
        self.results[payload] = result
        self.check_result(step, stamp, result)

    def check_result(self, step: steps.Step, stamp: int, result: steps.Result) -> None:
        """Apply a step to the model, and compare the results."""
        wanted = self.model.apply(step, stamp)
        same = steps.encode_result(wanted) == steps.encode_result(result)
        assert same, f"{step}: {result}, not {wanted}"


class OrderWatch:
    """Follows all replicas of all journals.

    Args:
        make: makes the order of a journal.

    Attributes:
        journals: by tablet.
        broken: violations; raised by `look`.
        checks: number of checks.
    """

    def __init__(self, make: Callable[[JournalInfo], JournalOrder] = JournalOrder) -> None:
        self._make = make
        self.journals: dict[TabletId, JournalOrder] = {}
        self.broken: list[AssertionError] = []
        self.checks: Counter[str] = Counter()

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Follow what is applied, with small constants."""
        apply, prepare = JournalMachine.apply, JournalMachine.prepare_compaction

        def watched(
            machine: JournalMachine, operations: Sequence[CommittedOperation]
        ) -> list[bytes]:
            info = machine.info
            results = apply(machine, operations)
            self._applied(machine, info, operations, results)
            return results

        def merged(machine: JournalMachine, horizon: int | None = None, **more: Any):
            build = prepare(machine, horizon, **more)
            self.checks["merges"] += build is not None
            return build

        with mock.patch.multiple(JournalMachine, apply=watched, prepare_compaction=merged):
            patches = [mock.patch.object(*one) for one in SMALL]
            for patch in patches:
                patch.start()
            try:
                yield
            finally:
                for patch in patches:
                    patch.stop()

    def _applied(
        self,
        machine: JournalMachine,
        info: JournalInfo,
        operations: Sequence[CommittedOperation],
        results: list[bytes],
    ) -> None:
        order = self.journals.setdefault(info.tablet_id, self._make(info))
        for operation, result in zip(operations, results, strict=True):
            digest = machine.digest_at(operation.stamp)
            one = AppliedStep(
                operation.id.index, operation.stamp, operation.payload, result, digest
            )
            self.checks["applied"] += 1
            try:
                order.note(one)
            except AssertionError as err:
                self.broken.append(err)

    def look(self) -> None:
        """Raise the first violation."""
        if self.broken:
            raise self.broken[0]

    def check_content(self, machines: Sequence[JournalMachine]) -> None:
        """Compare the content of replicas that have applied everything with the model."""
        for machine in machines:
            order = self.journals.setdefault(machine.info.tablet_id, self._make(machine.info))
            order.model.check(machine)
            self.checks["contents"] += 1
