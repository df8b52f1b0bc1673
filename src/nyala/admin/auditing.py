"""Audit log of a server process. Used on the loop; the file is written in lane DISK.

The log is in the folder `audit` of the data directory. A call that has to be audited is refused while the log
cannot be written; other calls are not affected.
"""

import asyncio
import logging
from pathlib import Path
from typing import Any

from nyala.common.errors import NyalaError, Unavailable
from nyala.datadir.instance import FILE_NAME as INSTANCE
from nyala.env.env import Env
from nyala.env.tasks import Lane
from nyala.security.audit import AuditLog
from nyala.security.authority import private_folder

log = logging.getLogger(__name__)

FOLDER = "audit"


class Auditor:
    """Writer of the audit log of a server.

    Args:
        env: clock and tasks.
        directory: data directory of the server.
    """

    def __init__(self, env: Env, directory: str) -> None:
        self._env = env
        self._directory = Path(directory)
        self._log: AuditLog | None = None
        self._one = asyncio.Lock()

    async def note(self, event: str, **fields: Any) -> None:
        """Append a line with the time; durable on return.

        Args:
            event: kind of the line.
            **fields: further content; JSON values.

        Raises:
            Unavailable: the log cannot be written.
        """
        line = {"time_us": self._env.clock.wall_us(), "event": event, **fields}
        async with self._one:
            try:
                await self._env.tasks.run(Lane.DISK, self._append, line)
            except (OSError, NyalaError) as err:
                raise Unavailable(
                    f"the audit log of this server cannot be written, and this call has to be in it: {err}; "
                    f"make room on the disk of {self._directory / FOLDER}, or repair it, and try again"
                ) from err

    def _append(self, line: dict[str, Any]) -> None:
        if self._log is None:
            if not (self._directory / INSTANCE).exists():
                raise Unavailable("the server is starting")
            self._log = AuditLog(str(private_folder(str(self._directory / FOLDER))))
        self._log.append(line)

    async def close(self) -> None:
        """Close the log."""
        if self._log is not None:
            self._log.close()
            self._log = None
