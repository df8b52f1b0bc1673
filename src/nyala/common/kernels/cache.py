"""The folder in which numba caches the kernels of nyala: once per user and state of their sources.

Not beside the sources, as numba has it by default: an installation may belong to another user, or be
read-only. Without a folder of the user it is one below the temporary folder, with a warning. Numba executes
what it reads there, so a folder that another user could have written to is never used.
"""

import logging
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from nyala.common.errors import InvalidArgument
from nyala.common.folders import own

VARIABLE = "NUMBA_CACHE_DIR"
"""Environment variable with a folder that is used instead; numba's own."""
log = logging.getLogger(__name__)


@contextmanager
def used() -> Iterator[None]:
    """Have numba cache the kernels of the modules that are imported within the block.

    Its setting is restored, since other parts of the program may have kernels too.

    Raises:
        InvalidArgument: no folder can be written to.
    """
    from numba.core import config

    before = config.CACHE_DIR
    config.CACHE_DIR = str(folder())
    try:
        yield
    finally:
        config.CACHE_DIR = before


def folder() -> Path:
    """Return the folder, which exists; it is the same for all processes of a user.

    Raises:
        InvalidArgument: no folder can be written to.
    """
    given = os.environ.get(VARIABLE)
    return Path(given) if given else _own()


@cache
def _own() -> Path:
    base = own.of_user("XDG_CACHE_HOME", ".cache")
    if base is not None and own.prepare(base / "kernels"):
        return base / "kernels"
    place = own.temporary() / "kernels"
    if not (own.prepare(place.parent) and own.prepare(place)):
        try:
            place = Path(tempfile.mkdtemp(prefix="nyala-kernels-"))
        except OSError as err:
            raise InvalidArgument(
                f"the compiled kernels cannot be kept: no folder can be written to ({err}); set "
                f"XDG_CACHE_HOME or {VARIABLE} to a folder of this user"
            ) from err
    log.warning(
        "this user has no cache folder that can be written to, so the compiled kernels are kept in %s, and "
        "compiled again when it is gone; set XDG_CACHE_HOME to a folder that stays",
        place,
    )
    os.environ[VARIABLE] = str(place)  # for the processes that this one starts, without the warning
    return place
