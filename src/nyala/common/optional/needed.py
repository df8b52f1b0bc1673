"""Packages that some calls need, and that are not installed with nyala."""

from importlib import import_module
from typing import Any


def needed(package: str, call: str) -> Any:
    """Return a package that a call needs.

    Args:
        package: its name, which is also an extra of nyala.
        call: that needs it.

    Raises:
        ModuleNotFoundError: it is not installed; the message has the command that installs it.
    """
    try:
        return import_module(package)
    except ModuleNotFoundError as err:
        if err.name != package:
            raise
        raise ModuleNotFoundError(
            f"{call} needs {package}, which is not installed; run: pip install {package}, or call to_arrow() "
            "or to_batches(), which need no other package",
            name=package,
        ) from None
