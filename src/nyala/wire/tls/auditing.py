"""Lines of the audit log for calls of the public port: before an audited call, and after it."""

import contextlib
import logging
from collections.abc import AsyncIterator
from typing import Any, Protocol

from nyala.common.errors import NyalaError
from nyala.security.identity import CALLER

log = logging.getLogger(__name__)

SUBJECTS = (
    "name", "id", "uuid", "serial", "role", "token_id", "tablet_id", "destination_uuid", "peer_host",
    "owner", "level",
)  # fmt: skip
"""Fields of requests that name the subject of a call; none is a secret or a value of a row."""
MAX_TEXT = 200


class Audit(Protocol):
    """Writer of an audit log."""

    async def note(self, event: str, **fields: Any) -> None:
        """Append a line; durable on return.

        Args:
            event: kind of the line.
            **fields: further content; JSON values.

        Raises:
            Unavailable: the log cannot be written.
        """
        ...


@contextlib.asynccontextmanager
async def audited(audit: Audit, path: str, request: Any) -> AsyncIterator[None]:
    """Note an audited call before it is carried out, and its result afterwards.

    Args:
        audit: the log.
        path: of the method.
        request: of the call.

    Raises:
        Unavailable: the log cannot be written; the call is not carried out.
    """
    caller = CALLER.get()
    who = "" if caller is None else str(caller.principal)
    table = getattr(request, "table", None)  # a new one
    named = [
        *((f, getattr(request, f, "")) for f in SUBJECTS),
        ("name", getattr(table, "name", "")),
    ]
    about = {f: str(value)[:MAX_TEXT] for f, value in named if value}
    await audit.note("call", method=path, who=who, about=about)
    result = "UNKNOWN"
    try:
        yield
        result = "OK"
    except NyalaError as err:
        result = err.code
        raise
    finally:
        await note_or_log(audit, "result", method=path, who=who, about=about, result=result)


async def note_or_log(audit: Audit, event: str, **fields: Any) -> None:
    """As `Audit.note`; a line that cannot be written is in the log of the process."""
    try:
        await audit.note(event, **fields)
    except NyalaError as failure:
        log.error("%s of %s is not in the audit log: %s", event, fields["method"], failure)
