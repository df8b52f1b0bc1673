"""Runs the commands of a page of docs/operate in a shell, against a real local cluster.

The format of a page:

- A block fenced with `sh` is run: all such blocks of a page in order, in one bash that ends at the first
  command that fails; so variables carry over. Other blocks are not run.
- A block fenced with `sh refused` has to fail: it shows a refusal.
- A block fenced with `text` right behind one of these is the expected output (both streams): each of its
  lines has to appear, in this order. `...` matches anything.
- `./nyala-data` is the local cluster, at the addresses that `nyala up` chooses (masters 7051, 7151, ...): the
  test's cluster, in the same folder, has others, which are put in their place in everything on the page; any
  other address of 127.0.0.1 becomes a free one.
- A server is killed by `kill -9 $(cut -d' ' -f1 nyala-data/tserver-1.pid)`, and started by `nyala up`, which
  starts those that do not run. `NYALA_MASTERS` is set.
"""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from nyala.testing import MiniCluster, layout
from tests.docs.quick import Quick

ROOT = Path(__file__).parent.parent.parent
FOLDER = "nyala-data"
BLOCK_LIMIT_S = 240
_FENCE = re.compile(r"^```([^\n`]*)\n(.*?)^```$", re.S | re.M)
_END = "<<end of block>>"


@dataclass(frozen=True, slots=True)
class Step:
    """One block of commands.

    Attributes:
        commands: as on the page.
        refused: they have to fail.
        expected: lines that have to be printed; empty: any output.
        line: line of the page at which the block begins.
    """

    commands: str
    refused: bool
    expected: tuple[str, ...]
    line: int


def steps(text: str) -> list[Step]:
    """Return the steps of a page."""
    found: list[Step] = []
    last_end = -1
    for block in _FENCE.finditer(text):
        words = block[1].split()
        between = text[last_end : block.start()] if last_end >= 0 else "-"
        if words in (["sh"], ["sh", "refused"]):
            line = text[: block.start()].count("\n") + 2
            found.append(Step(block[2], "refused" in words, (), line))
            last_end = block.end()
        elif words == ["text"] and not between.strip():
            step = found.pop()
            lines = tuple(s for s in block[2].splitlines() if s.strip())
            found.append(Step(step.commands, step.refused, lines, step.line))
            last_end = -1
    return found


def missing(expected: tuple[str, ...], printed: str) -> str | None:
    """Return the first expected line that is not printed in order; None if all are."""
    lines = iter(_plain(s) for s in printed.splitlines())
    for wanted in expected:
        pattern = ".*".join(re.escape(part) for part in _plain(wanted).split("..."))
        if not any(re.fullmatch(pattern, line) for line in lines):
            return wanted
    return None


def _plain(line: str) -> str:
    return " ".join(line.split())


class Shell:
    """One bash, which runs one block after the other; at the end it is killed with its processes.

    Args:
        folder: where it runs.
        masters: of the cluster.
        programs: folder of the `nyala` program.
    """

    def __init__(self, folder: Path, masters: str, programs: Path) -> None:
        paths = f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        environ = {**os.environ, "PATH": paths, "NYALA_MASTERS": masters, "COLUMNS": "200"}
        self._bash = subprocess.Popen(
            ["bash", "--norc", "-eu", "-o", "pipefail"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            cwd=folder, env=environ, text=True, start_new_session=True,
        )  # fmt: skip

    def run(self, commands: str) -> tuple[bool, str]:
        """Run a block; return whether its commands succeeded (a failure ends the shell), and its output."""
        assert self._bash.stdin is not None
        assert self._bash.stdout is not None
        late = threading.Timer(BLOCK_LIMIT_S, self._kill)
        late.start()
        self._bash.stdin.write(f"{{ {commands}\n}} </dev/null\necho '{_END}'\n")
        self._bash.stdin.flush()
        output = []
        for line in self._bash.stdout:
            output.append(line.removesuffix(f"{_END}\n"))
            if output[-1] != line:
                break
        else:
            output.append("" if late.is_alive() else f"not done within {BLOCK_LIMIT_S} s")
            self._bash.wait()
        late.cancel()
        return self._bash.poll() is None, "".join(output)

    def close(self) -> None:
        """Kill the shell and its remaining processes."""
        self._kill()
        self._bash.communicate()

    def _kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._bash.pid, signal.SIGKILL)


@contextmanager
def shell(cluster: MiniCluster) -> Iterator[Shell]:
    """Open a shell in the folder that holds the cluster's."""
    with TemporaryDirectory() as programs:
        quick = Quick(Path(programs))
        try:
            made = Shell(Path(cluster.dir).parent, cluster.masters, Path(programs))
            try:
                yield made
            finally:
                made.close()
        finally:
            quick.close()


def run_page(
    page: Path,
    cluster: MiniCluster,
    before: Callable[[Step], None] = lambda step: None,
    after: Callable[[], None] = lambda: None,
) -> None:
    """Run every step of a page.

    Args:
        page: the file.
        cluster: cluster whose folder is `nyala-data`.
        before: called before each step.
        after: called at the end, while processes started by the page still run.

    Raises:
        AssertionError: a command failed, an expected failure did not occur, or the output differs.
    """
    assert Path(cluster.dir).name == FOLDER, cluster.dir
    text, more = _at_addresses_of(cluster, page.read_text())
    found = steps(text)
    assert found, f"{page} has no commands"
    with layout.reserve(more), shell(cluster) as open_shell:
        for step in found:
            before(step)
            commands = step.commands
            if step.refused:
                commands = f"if {{ {commands}\n}}; then echo 'this was not refused'; false; fi"
            good, output = open_shell.run(commands)
            where = f"{page.name}:{step.line}\n{step.commands}"
            assert good, f"{where}failed:\n{output}"
            absent = missing(step.expected, output)
            assert absent is None, f"{where}did not print: {absent}\nbut:\n{output}"
        after()


def _at_addresses_of(cluster: MiniCluster, text: str) -> tuple[str, list[str]]:
    """Replace the addresses that `nyala up` would choose by the cluster's.

    Returns:
        The text, and the addresses that servers get which the page itself starts.
    """
    usual = layout.plan(
        cluster.dir,
        sum(n.startswith("master") for n in cluster.names),
        sum(n.startswith("tserver") for n in cluster.names),
        base_port=layout.DEFAULT_BASE, options={},
    )  # fmt: skip
    real = layout.load(cluster.dir)
    assert real is not None, f"{cluster.dir} is no local cluster"
    places = {}
    for usual_server, real_server in zip(usual.servers, real.servers, strict=True):
        places[usual_server.address] = real_server.address
        places[usual_server.peer_address] = real_server.peer_address
        places[usual_server.web_address] = real_server.web_address
    more = sorted(set(re.findall(r"127\.0\.0\.1:\d+", text)) - set(places))
    for address, port in zip(more, layout.free_ports(len(more)), strict=True):
        places[address] = f"127.0.0.1:{port}"
    new = [places[address] for address in more]
    return re.sub(r"127\.0\.0\.1:\d+", lambda found: places[found[0]], text), new
