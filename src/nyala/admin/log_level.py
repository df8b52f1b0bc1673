"""SetLogLevel: the level of this process's log, changed while it runs."""

import difflib
import logging

from nyala.common.errors import InvalidArgument
from nyala.env.rpc import Handlers
from nyala.wire import methods
from nyala.wire.proto import nyala_pb2 as pb

log = logging.getLogger(__name__)

ROOT = "nyala"
"""Logger of which all others of a server are children."""
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")


def handlers() -> Handlers:
    """Return the method that this module answers."""
    return {methods.SET_LOG_LEVEL: set_log_level}


async def set_log_level(request: pb.SetLogLevelRequest) -> pb.SetLogLevelResponse:
    """Set the level of a logger until the process ends.

    Raises:
        InvalidArgument: no logger of nyala, none that this process has, or no level.
    """
    name, level = request.name or ROOT, request.level.upper()
    if name != ROOT and not name.startswith(f"{ROOT}."):
        raise InvalidArgument(
            f"{name[:100]!r} is no logger of a server; name {ROOT} or one below it, such as {ROOT}.wal"
        )
    known = sorted(n for n in logging.root.manager.loggerDict if n.startswith(f"{ROOT}."))
    if name not in (ROOT, *known):
        close = ", ".join(difflib.get_close_matches(name[:100], known)) or ", ".join(known)[:1000]
        raise InvalidArgument(
            f"this server has no logger {name[:100]!r}; it has, for instance, {close}"
        )
    if level not in LEVELS:
        raise InvalidArgument(f"{level[:100]!r} is no level; use one of {', '.join(LEVELS)}")
    logger = logging.getLogger(name)
    previous = logging.getLevelName(logger.getEffectiveLevel())
    logger.setLevel(level)
    log.warning("the level of the log %s is %s; it was %s", name, level, previous)
    return pb.SetLogLevelResponse(previous=previous)
