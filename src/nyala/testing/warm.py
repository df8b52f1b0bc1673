"""Compiles the numba kernels once, so that processes started together do not all compile them."""

import hashlib
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import nyala
from nyala.common.kernels import cache

STAMP = ".kernels-warm"


def warm_kernels(notify: Callable[[str], None] = lambda text: None) -> bool:
    """Compile all kernels in a separate process, unless the cache has them for this source.

    Args:
        notify: called with a message before something that takes a while.

    Returns:
        True if kernels were compiled.
    """
    stamp = _stamp()
    if stamp.exists():
        return False
    notify("compiling the numba kernels, once per user and release (about 20 s)")
    subprocess.run(
        [sys.executable, "-c", "from nyala.tablet.kernels import key_index; key_index.warm()"],
        check=True,
    )
    stamp.parent.mkdir(parents=True, exist_ok=True)
    stamp.touch()
    return True


def _stamp() -> Path:
    """Return the marker file in the cache: it exists once the kernels of this source are compiled."""
    source = Path(nyala.__file__).parent
    digest = hashlib.sha256(f"{sys.version} {version('numba')}".encode())
    for path in sorted(source.rglob("*.py")):
        text = path.read_bytes()
        if b"njit" in text:
            digest.update(text)
    return cache.folder() / f"{STAMP}-{digest.hexdigest()[:16]}"
