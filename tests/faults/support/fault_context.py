"""Context of a fault on a running cluster: the machines, the workload on them, and random numbers."""

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass

from nyala.client.connection import Connection
from nyala.client.core import ClientOptions
from nyala.wire import methods
from nyala.wire.proto import nyala_pb2 as pb
from tests.cluster.storm import RESUME_S, TABLE, Storm
from tests.cluster.support.workload import Workload
from tests.faults.support.registers import Registers
from tests.faults.support.testbed import Yard
from tests.waiting import wait_until


@dataclass(frozen=True, slots=True)
class Scene:
    """One run.

    Attributes:
        yard: testbed of three machines.
        storm: probes every tablet for acknowledged writes.
        workload: writes and reads all the time, and records the rows that must exist.
        registers: record histories of single rows.
        random: draws machines and moments.
    """

    yard: Yard
    storm: Storm
    workload: Workload
    registers: Registers
    random: random.Random

    def check(self) -> None:
        """Raise the error that stopped a client, if any."""
        self.workload.check()
        self.registers.check()

    def until(
        self, condition: Callable[[], object], what: str, timeout_s: float = RESUME_S
    ) -> None:
        """Wait for a condition while the workload runs."""

        def holds() -> bool:
            self.check()
            return bool(condition())

        wait_until(holds, what, timeout_s)

    def go_on(self, operations: int) -> None:
        """Wait until `more` further operations are acknowledged."""
        goal = self.workload.acknowledged + operations
        self.until(lambda: self.workload.acknowledged >= goal, "the workload goes on")

    def last(self, seconds: float) -> None:
        """Let a fault last; no request has to succeed during it."""
        threading.Event().wait(seconds)

    def leading_machine(self) -> int:
        """Draw a machine whose tablet server leads a tablet."""
        leading = sorted(set(wait_until(lambda: self.yard.leaders(TABLE), "a leader").values()))
        return int(self.random.choice(leading).rpartition("-")[2])

    def terms(self, name: str) -> dict[str, int]:
        """Return by tablet the term that a tablet server reports."""
        connection = Connection(self.yard.masters, ClientOptions(timeout_ms=30_000))
        try:
            call = connection.core.env.rpc.call(
                self.yard.address(name), methods.LIST_TABLETS, pb.ListTabletsRequest(),
                timeout_ms=20_000,
            )  # fmt: skip
            answer = connection.run(call)
        finally:
            connection.close()
        return {t.report.tablet_id: t.report.consensus.term for t in answer.tablets}
