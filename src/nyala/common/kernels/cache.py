"""The folder in which numba caches the kernels of nyala: once per user and state of their sources.

Not beside the sources, as numba has it by default: an installation may belong to another user, or be
read-only. Without a folder of the user it is one below the temporary folder, with a warning. Numba executes
what it reads there, so a folder that another user could have written to is never used.
"""

import logging
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from nyala.common.errors import InvalidArgument

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
    for place in _of_user():
        if _prepare(place):
            return place
    place = Path(tempfile.gettempdir(), f"nyala-{os.geteuid()}", "kernels")
    if not (_prepare(place.parent) and _prepare(place)):
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


def _of_user() -> Iterator[Path]:
    """Return the folder below the user's cache folder; none if there is no such folder."""
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if given.is_absolute():
        yield given / "nyala" / "kernels"
        return
    try:
        yield Path.home() / ".cache" / "nyala" / "kernels"
    except RuntimeError:  # neither HOME nor an entry for the user
        return


def _prepare(place: Path) -> bool:
    """Make a folder; return whether it can be written to by this user, and by no other one."""
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = place.lstat()
        others = stat.S_IWGRP | stat.S_IWOTH
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            return False
        if found.st_mode & others:
            return False
        tempfile.TemporaryFile(dir=place).close()
    except OSError:
        return False
    return True
