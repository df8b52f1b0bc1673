"""Faults of one kind on three machines under load: `python -m tests.faults.run KIND --count N --seed S`.

Nothing acknowledged may be lost or take effect twice, histories of single rows must be linearizable, and
the replicas must be equal at the end. Inside a sandbox only (sandbox.py): `./run soak faults`, tests/faults.
"""

import argparse
import random
import sys
import time
from pathlib import Path

from tests.cluster.kill_cycles import TABLE, KillCycles
from tests.cluster.support.ksck import wait_ksck
from tests.cluster.support.restarts import all_equal
from tests.cluster.support.workload import Workload, create
from tests.faults.support.fault_context import FaultContext
from tests.faults.support.kinds import KINDS
from tests.faults.support.registers import Registers
from tests.faults.support.testbed import Testbed
from tests.waiting import wait_until

LOSING = ("power", "disk")
"""Kinds of faults after which a disk may lack data, so that each pair of servers must have all rows."""


def say(text: str) -> None:
    print(text, flush=True)


def run(testbed: Testbed, kind: str, first: int, count: int, seed: int, end: float) -> str:
    """Run faults of a kind; return a closing line, all checks passed."""
    rng, began, done = random.Random(seed), time.monotonic(), 0
    with testbed.connect() as client:
        create(client, TABLE)
    kills = KillCycles(testbed, rng)
    with (
        Workload(testbed.connect, TABLE, seed) as workload,
        Registers(testbed.connect, TABLE, seed) as registers,
    ):
        context = FaultContext(testbed, kills, workload, registers, rng)
        while done < count and time.monotonic() < end:
            context.wait_for_operations(rng.randrange(20, 200))
            fault_began = time.monotonic()
            text = KINDS[kind](context, first + done)
            wait_ksck(testbed)
            context.check()
            done += 1
            say(f"{kind} {done}: {text}; {time.monotonic() - fault_began:.1f} s")
    context.check()
    wait_until(lambda: all_equal(testbed), "equal replicas", 120)
    checked = registers.histories.judge()
    if kind in LOSING:
        count, compared = kills.verify_on_every_pair(workload), "on every pair of servers"
    else:
        with testbed.connect() as client:
            count, compared = workload.verify(client.table(TABLE).scan().to_arrow()), "once"
    return (
        f"{kind}: seed {seed}, {done} faults, {workload.acknowledged} operations acknowledged, {count} rows "
        f"compared {compared}, 0 lost, 0 doubled, {checked} operations on single rows "
        f"linearizable; {time.monotonic() - began:.0f} s"
    )


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--dir", type=Path, required=True, help="an empty folder")
    parser.add_argument("--count", type=int, default=5)
    parser.add_argument("--first", type=int, default=0, help="number of the first one: its variant")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--secure", action="store_true", help="with certificates, off loopback")
    given = parser.parse_args()
    end = time.monotonic() + 60 * given.minutes
    began = time.monotonic()
    with Testbed(given.dir, given.secure) as testbed:
        say(f"three machines are up after {time.monotonic() - began:.1f} s")
        try:
            say(run(testbed, given.kind, given.first, given.count, given.seed, end))
        except BaseException:  # any failure is reported with the end of the servers' logs
            for name in testbed.names:
                say(f"--- {name}\n{testbed.log(name)[-1500:]}")
            raise
    return 0


if __name__ == "__main__":
    sys.exit(main())
