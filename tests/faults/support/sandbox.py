"""Runs a module in mount, network and pid namespaces of its own, which end with it.

The kernel cleans up, also after a failure, a time-out or `kill -9`: when the module's process ends, every
process in its pid namespace is killed; then its mounts, the loop devices behind them (they
detach themselves), its network devices and its iptables rules go with the other two.
"""

import functools
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.waiting import within

ROOT = Path(__file__).parents[3]
NAMESPACES = (
    "unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc",
)  # fmt: skip
PROBES = {
    "namespaces": "true",
    "an ext4 image on a loop device": (
        "truncate -s 8M image && mkfs.ext4 -q image && mkdir disk && mount -o loop image disk"
    ),
    "veth devices on a bridge": (
        "ip link add name br0 type bridge && ip link add a0 type veth peer name a1 && "
        "ip link set a0 master br0"
    ),
    "iptables": "iptables -A INPUT -s 127.77.0.1 -j DROP",
    "strace with fault injection": "strace -f -qq -e inject=fsync:error=EIO true",
}


@functools.cache
def missing() -> str | None:
    """Return the reason why this machine cannot run sandboxes, or None."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "power cuts, partitions and disk errors are made by root on Linux"
    for what, script in PROBES.items():
        with tempfile.TemporaryDirectory(prefix="nyala-probe-") as folder:
            command = [*NAMESPACES, "sh", "-c", script]
            try:
                done = subprocess.run(
                    command,
                    cwd=folder,
                    capture_output=True,
                    text=True,
                    timeout=within(120),
                    check=False,
                )
            except (OSError, subprocess.TimeoutExpired) as err:
                return f"no {what}: {err}"
            if done.returncode:
                return f"no {what}: {done.stderr.strip()[-200:]}"
    return None


def run(module: str, *args: object, timeout_s: float, show: bool = False) -> str:
    """Run `python -m MODULE --dir FOLDER ARGS` in a sandbox; return what it printed.

    The folder is created for it and removed once everything in it is unmounted.

    Args:
        module: module with a command line.
        args: its arguments.
        timeout_s: seconds after which it is killed with its processes.
        show: print its output immediately, and return nothing.

    Raises:
        AssertionError: it failed, or did not end in time; with the end of its output.
    """
    folder = tempfile.mkdtemp(prefix="nyala-faults-")
    command = [*NAMESPACES, sys.executable, "-m", module, "--dir", folder, *map(str, args)]
    with tempfile.TemporaryFile("w+") as output:
        into = None if show else output
        process = subprocess.Popen(command, cwd=ROOT, stdout=into, stderr=into)
        try:
            status: object = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            status = f"did not end within {timeout_s:.0f} s"
        finally:
            process.kill()
            process.wait()
            shutil.rmtree(folder, ignore_errors=True)
        output.seek(0)
        text = output.read()
    if status != 0:
        raise AssertionError(f"{module} {args}: {status}\n{text[-8000:]}")
    return text
