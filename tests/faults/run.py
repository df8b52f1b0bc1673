"""Faults of one kind on three machines under load: `python -m tests.faults.run KIND --count N --seed S`.

Nothing acknowledged may be lost or take effect twice, histories of single rows must be linearizable, and
the replicas must be equal at the end. Inside a sandbox only (sandbox.py): `./run soak faults`, tests/faults.
"""

import argparse
import random
import sys
import time
from pathlib import Path

from tests.cluster.storm import TABLE, Storm, wait_ksck
from tests.cluster.support.restarts import all_equal
from tests.cluster.support.workload import Workload, create
from tests.faults.support.fault_context import Scene
from tests.faults.support.kinds import KINDS
from tests.faults.support.registers import Registers
from tests.faults.support.testbed import Yard
from tests.waiting import wait_until

LOSING = ("power", "disk")
"""Faults after which one server's disk may lack data of the others, so that each pair must have all rows."""


def say(text: str) -> None:
    print(text, flush=True)


def run(yard: Yard, kind: str, first: int, count: int, seed: int, end: float) -> str:
    """Run faults of a kind; return a closing line, all checks passed."""
    rng, began, done = random.Random(seed), time.monotonic(), 0
    with yard.connect() as client:
        create(client, TABLE)
    storm = Storm(yard, rng)
    with (
        Workload(yard.connect, TABLE, seed) as workload,
        Registers(yard.connect, TABLE, seed) as registers,
    ):
        scene = Scene(yard, storm, workload, registers, rng)
        while done < count and time.monotonic() < end:
            scene.go_on(rng.randrange(20, 200))
            at = time.monotonic()
            what = KINDS[kind](scene, first + done)
            wait_ksck(yard)
            scene.check()
            done += 1
            say(f"{kind} {done}: {what}; {time.monotonic() - at:.1f} s")
    scene.check()
    wait_until(lambda: all_equal(yard), "equal replicas", 120)
    judged = registers.histories.judge()
    if kind in LOSING:
        found, where = storm.verify_on_every_pair(workload), "on every pair of servers"
    else:
        with yard.connect() as client:
            found, where = workload.verify(client.table(TABLE).scan().to_arrow()), "once"
    return (
        f"{kind}: seed {seed}, {done} faults, {workload.acknowledged} operations acknowledged, {found} rows "
        f"compared {where}, 0 lost, 0 doubled, {judged} operations on single rows "
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
    given = parser.parse_args()
    end = time.monotonic() + 60 * given.minutes
    began = time.monotonic()
    with Yard(given.dir) as yard:
        say(f"three machines are up after {time.monotonic() - began:.1f} s")
        try:
            say(run(yard, given.kind, given.first, given.count, given.seed, end))
        except BaseException:  # whatever it was: what the servers said last goes with it
            for name in yard.names:
                say(f"--- {name}\n{yard.log(name)[-1500:]}")
            raise
    return 0


if __name__ == "__main__":
    sys.exit(main())
