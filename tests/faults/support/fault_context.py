"""Context of a fault on a running cluster: the machines, the workload on them, and random numbers."""

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass

from nyala.client.connection import Connection
from nyala.client.core import ClientOptions
from nyala.wire import methods
from nyala.wire.proto import nyala_pb2 as pb
from tests.cluster.kill_cycles import RESUME_S, TABLE, KillCycles
from tests.cluster.support.workload import Workload
from tests.faults.support.registers import Registers
from tests.faults.support.testbed import Testbed
from tests.waiting import wait_until


@dataclass(frozen=True, slots=True)
class FaultContext:
    """One run.

    Attributes:
        testbed: testbed of three machines.
        kills: draws the servers to kill, and probes whether every tablet accepts writes.
        workload: writes and reads all the time, and records the rows that must exist.
        registers: record histories of single rows.
        random: draws machines and times.
    """

    testbed: Testbed
    kills: KillCycles
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

    def wait_for_operations(self, operations: int) -> None:
        """Wait until that many further operations are acknowledged."""
        goal = self.workload.acknowledged + operations
        self.until(
            lambda: self.workload.acknowledged >= goal, "further operations are acknowledged"
        )

    def wait(self, seconds: float) -> None:
        """Wait while a fault lasts; no request has to succeed meanwhile."""
        threading.Event().wait(seconds)

    def leading_machine(self) -> int:
        """Draw a machine whose tablet server leads a tablet."""
        leading = sorted(set(wait_until(lambda: self.testbed.leaders(TABLE), "a leader").values()))
        return int(self.random.choice(leading).rpartition("-")[2])

    def terms(self, name: str) -> dict[str, int]:
        """Return by tablet the term that a tablet server reports."""
        connection = Connection(self.testbed.masters, ClientOptions(timeout_ms=30_000))
        try:
            call = connection.core.env.rpc.call(
                self.testbed.address(name), methods.LIST_TABLETS, pb.ListTabletsRequest(),
                timeout_ms=20_000,
            )  # fmt: skip
            answer = connection.run(call)
        finally:
            connection.close()
        return {t.report.tablet_id: t.report.consensus.term for t in answer.tablets}
