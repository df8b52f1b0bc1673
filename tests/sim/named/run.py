"""`nyala chaos`: the named scenarios of the design documents, and seeds of the simulator.

python -m tests.sim.named.run list
python -m tests.sim.named.run run SCENARIO...
python -m tests.sim.named.run seeds | ensembles [--seed N] [--minutes M]

Nothing here needs more than nyala itself: it is part of the wheel (pyproject.toml).
"""

import json
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.scenarios import raft_runner
from tests.sim.ensembles import run as ensembles
from tests.sim.named import points
from tests.sim.runs import run as cluster
from tests.sim.world.swallowed import quiet
from tests.unit.master.scenarios import master_runner

FILES = Path(raft_runner.__file__).parent
STAGES = {
    "t=1": ("4.1_witnesses_one_fault_of_three", "three servers with data: any one may fail"),
    "t=2": ("4.1_witnesses_one_fault_of_three", "one is lost: a second failure blocks writes"),
    "t=3": ("4.1_witness_in_the_place_of_a_lost_server", "a witness is added: three of four"),
    "t=4": ("4.1_witness_in_the_place_of_a_lost_server", "the lost one has no vote: two of three"),
    "t=5": ("4.1_witness_has_the_data", "the witness has the data, and may lead"),
}
"""Stages of the document on changes of configuration: scenario file, and what holds in it."""
COORDINATOR = "coordinator operations"


@dataclass(frozen=True, slots=True)
class NamedScenario:
    """One scenario.

    Attributes:
        name: as users type it.
        document: design document that describes it.
        text: what happens.
        run: runs it and raises AssertionError, or an error of nyala, if the result is not the expected one.
    """

    name: str
    document: str
    text: str
    run: Callable[[], object]


def scenarios() -> Iterator[NamedScenario]:
    """Return all named scenarios: stages, crash points, and those of Raft and of the masters."""
    for stage, (file, text) in STAGES.items():
        path = FILES / "raft" / f"{file}.txt"
        yield NamedScenario(
            stage, "changes of configuration", text, partial(raft_runner.run_file, path)
        )
    for operation in points.OPERATIONS:
        for number, point in enumerate(points.crash_points(operation)):
            run = partial(points.crash_at, operation, number)
            text = f"the leader crashes {point}; the next one takes over"
            yield NamedScenario(f"{operation}_{number + 1}", COORDINATOR, text, run)
    for folder, document, run_file in (
        ("raft", "Raft", raft_runner.run_file),
        ("master", "masters", master_runner.run_file),
    ):
        for path in sorted((FILES / folder).glob("*.txt")):
            name = f"{folder}/{path.stem}"
            yield NamedScenario(name, document, _title(path), partial(run_file, path))


def _title(path: Path) -> str:
    """Return the first comment of a scenario file."""
    first = path.read_text().partition("\n")[0]
    return first.removeprefix("#").strip() if first.startswith("#") else path.stem.replace("_", " ")


def run_named(names: Sequence[str]) -> int:
    """Run scenarios and print a line for each; return 1 if one failed, 2 if a name is not known.

    Args:
        names: of the scenarios, or beginnings of names; none: all scenarios.
    """
    known = list(scenarios())
    if "" in names:
        print("the name of a scenario is empty; give no name to run all of them", file=sys.stderr)
        return 2
    for name in names:
        if not any(s.name.startswith(name) for s in known):
            print(f"no scenario begins with {name!r}; nyala chaos list has them", file=sys.stderr)
            return 2
    exact = {s.name for s in known}
    wanted = [s for s in known if not names or any(_is(s.name, n, exact) for n in names)]
    failed = 0
    for scenario in wanted:
        failed += not _passes(scenario)
    print(f"{len(wanted)} scenarios, {failed} failed")
    return 1 if failed else 0


def _is(name: str, given: str, exact: set[str]) -> bool:
    return name == given if given in exact else name.startswith(given)


def _passes(scenario: NamedScenario) -> bool:
    began = time.process_time()
    try:
        with quiet():
            scenario.run()
    except Exception:  # any error is the result of the scenario
        print(f"FAILED {scenario.name}: {scenario.text}\n{traceback.format_exc()}", flush=True)
        return False
    spent_s = time.process_time() - began
    print(f"passed {scenario.name}: {scenario.text} ({spent_s:.1f} s of CPU)", flush=True)
    return True


def main(words: Sequence[str]) -> int:
    """Run a command line and return its exit status."""
    verb, *more = words
    if verb == "list":
        print(json.dumps([(s.name, s.document, s.text) for s in scenarios()]))
        return 0
    if verb == "run":
        return run_named(more)
    if verb == "seeds":
        return cluster.main(more, every_kind=False)
    return ensembles.main(more)


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # as `nyala chaos run | head` expects
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # ends the workers too
    sys.exit(main(sys.argv[1:]))
