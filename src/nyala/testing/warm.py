"""Compiles the numba kernels once, before many processes would do it at the same time."""

import subprocess
import sys
from pathlib import Path

import nyala

STAMP = ".kernels-warm"


def warm_kernels() -> bool:
    """Compile all kernels in a process of their own unless that was done for this code.

    Returns:
        Whether it had to be done.
    """
    source = Path(nyala.__file__).parent
    newest = max(p.stat().st_mtime_ns for p in source.rglob("kernels*.py"))
    stamp = (
        source
        / "tablet"
        / "__pycache__"
        / f"{STAMP}-{sys.version_info[0]}{sys.version_info[1]}-{newest}"
    )
    if stamp.exists():
        return False
    subprocess.run(
        [sys.executable, "-c", "from nyala.tablet import kernels; kernels.warm()"], check=True
    )
    stamp.parent.mkdir(exist_ok=True)
    stamp.touch()
    return True
