"""Folders of this user: below those that XDG's variables name, or below the temporary folder.

What later programs find there they trust, as code or as certificates, so a folder that another user owns or
may write to is never used.
"""

import os
import stat
import tempfile
from pathlib import Path


def of_user(variable: str, below_home: str) -> Path | None:
    """Return nyala's folder of one kind; None if the user has no home.

    Args:
        variable: environment variable that names the folder of this kind, such as XDG_CACHE_HOME.
        below_home: path of it below the user's home, if the variable has no absolute path.
    """
    given = Path(os.environ.get(variable, ""))
    if given.is_absolute():
        return given / "nyala"
    try:
        return Path.home() / below_home / "nyala"
    except RuntimeError:  # neither HOME nor an entry for the user
        return None


def temporary() -> Path:
    """Return nyala's folder of this user below the temporary folder."""
    return Path(tempfile.gettempdir(), f"nyala-{os.geteuid()}")


def prepare(place: Path) -> bool:
    """Make a folder; return whether it can be written to by this user, and by no other one."""
    try:
        _make(place)
        if not is_own(place):
            return False
        tempfile.TemporaryFile(dir=place).close()
    except OSError:
        return False
    return True


def _make(place: Path) -> None:
    """Make a folder and those above it, for this user only, whatever the umask."""
    if not place.parent.exists():
        _make(place.parent)
    place.mkdir(mode=0o700, exist_ok=True)


def is_own(place: Path) -> bool:
    """Return whether a folder exists, and belongs to this user, and no other one may write to it."""
    try:
        found = place.lstat()
    except OSError:
        return False
    others = stat.S_IWGRP | stat.S_IWOTH
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        return False
    return not found.st_mode & others
