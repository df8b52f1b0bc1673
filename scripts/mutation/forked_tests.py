"""Runs tests in forks of one process that has imported pytest and the third-party packages, but not nyala.

For `./run mutants`: it saves the seconds of CPU that an interpreter and its imports take.
Reads requests from its input and writes outcomes to its output, one JSON object a line each.
"""

import contextlib
import ctypes
import gc
import importlib
import json
import os
import runpy
import select
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

PRELOADED = (
    "asyncio", "csv", "google.protobuf.message_factory", "google_crc32c", "grpc.aio",
    "hypothesis.stateful", "msgspec", "numba.extending", "numpy", "prometheus_client",
    "pyarrow.compute", "pyarrow.flight", "pytest", "typer.testing", "uvloop",
)  # fmt: skip
"""Modules imported before any fork. Not polars, duckdb and Spark, whose threads a fork does not have."""
OWN_PACKAGES = ("nyala", "tests", "scripts")
PR_SET_CHILD_SUBREAPER = 36
"""Number of the prctl that makes orphaned descendants children of this process."""
PLUGINS = ["-p", "pytest_timeout", "-p", "_hypothesis_pytestplugin", "-p", "no:cacheprovider"]


class Watch:
    """A pytest plugin: records failed tests with their errors, and checks whose tree's code was tested."""

    def __init__(self, tree: Path) -> None:
        self._tree = tree
        self.seen: dict[str, Any] = {"failed": [], "not collected": [], "passed": []}

    def pytest_collectreport(self, report: Any) -> None:
        """Record files that cannot be imported."""
        if report.failed:
            self.seen["not collected"].append([report.nodeid, _end(str(report.longrepr))])

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Record each failure of a test, its setup or its teardown."""
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            why = crash.message if crash else str(report.longrepr)
            self.seen["failed"].append([report.nodeid, why[:2000]])
        elif report.when == "call" and report.passed:
            self.seen["passed"].append(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        """Fail a run that used another tree's code."""
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__file__", None)
            if (
                name.partition(".")[0] in OWN_PACKAGES
                and file
                and not Path(file).is_relative_to(self._tree)
            ):
                self.seen["foreign"] = f"{name} is {file}"


def _end(text: str) -> str:
    return text.strip()[-300:]


def serve() -> None:
    """Answer requests until the input ends."""
    for name in PRELOADED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    out = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        if not line.strip():
            continue  # it ended a run
        if imported := [m for m in sys.modules if m.partition(".")[0] in OWN_PACKAGES]:
            sys.exit(f"imported before a fork: {imported}")
        print(json.dumps(_run(json.loads(line))), file=out, flush=True)


def _run(asked: dict[str, Any]) -> dict[str, Any]:
    """Run one request in a fork; at its end, its limit or the end of the input, kill all its processes."""
    scratch, began = Path(asked["scratch"]), time.monotonic()
    for name in ("output", "seen"):
        (scratch / name).unlink(missing_ok=True)
    pid = os.fork()
    if pid == 0:
        _child(asked, scratch)
    handle = os.pidfd_open(pid)
    try:  # input before the answer: the calling process has ended, or interrupts the run
        in_time = handle in select.select([handle, sys.stdin], [], [], asked["limit_s"])[0]
    finally:
        os.close(handle)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        _, status, used = os.wait4(pid, 0)
        _end_orphans()
    seen = (scratch / "seen").read_text() if (scratch / "seen").exists() else "{}"
    return {
        **json.loads(seen),
        "exit": os.waitstatus_to_exitcode(status) if in_time else None,
        "output": _end((scratch / "output").read_text(errors="replace")),
        "seconds": time.monotonic() - began,
        "cpu_s": used.ru_utime + used.ru_stime,
    }


def _end_orphans() -> None:
    """Kill the remaining processes of a run, in any session: they are children of this process now."""
    while orphans := _children():
        for pid in orphans:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _children() -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # ended meanwhile
            parent = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()[1]
            found += [int(folder.name)] if int(parent) == os.getpid() else []
    return found


def _child(asked: dict[str, Any], scratch: Path) -> None:
    """Execute the run in its own process group with its own output; never returns."""
    code = 70
    try:
        os.setsid()
        with open(os.devnull) as nothing, (scratch / "output").open("w") as output:
            os.dup2(nothing.fileno(), 0)
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
        os.environ["NUMBA_CACHE_DIR"] = asked["kernels"]
        sys.modules["numba"].core.config.reload_config()
        code = _module(asked["module"]) if asked.get("module") else _pytest(asked, scratch)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _module(name: str) -> int:
    sys.argv = [name]
    sys.path.insert(0, os.getcwd())
    try:
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


def _pytest(asked: dict[str, Any], scratch: Path) -> int:
    watch = Watch(Path.cwd())
    own = ["-q", "-x", "--timeout=0", f"--basetemp={scratch / 'tmp'}", *PLUGINS]
    code = int(sys.modules["pytest"].main([*own, *asked["arguments"]], plugins=[watch]))
    (scratch / "seen").write_text(json.dumps(watch.seen))
    return code


if __name__ == "__main__":
    sys.path.pop(0)  # this folder
    serve()
