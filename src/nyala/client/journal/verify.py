"""Comparison of a journal's replicas: all of each is read, at one id."""

import hashlib
from dataclasses import dataclass

from nyala.client.journal.core import JournalCore
from nyala.client.journal.locations import OpenJournal
from nyala.client.journal.pages import content_pages
from nyala.common.errors import NyalaError
from nyala.env.env import Env
from nyala.wire.proto import journal_pb2 as pb

MAX_AGE_MS = 600_000
"""Largest age of a replica's state, in milliseconds."""
PAUSE_MS = 200
"""Pause before a replica is read again, in milliseconds."""


@dataclass
class Reading:
    """Content of one replica.

    Attributes:
        address: address of the replica.
        last: id of the journal's last change.
        logs: number of them.
        entries: number of valid ones.
        keys: number of them.
        digest: digest of all of it.
        problem: empty: it was read at one id, and its ids are in order.
    """

    address: str
    last: int = 0
    logs: int = 0
    entries: int = 0
    keys: int = 0
    digest: str = ""
    problem: str = ""


class _Changed(Exception):
    """The journal changed while it was read."""


async def verify(env: Env, core: JournalCore, journal: OpenJournal, attempts: int) -> list[Reading]:
    """Read each replica until all are read at the same id, or the attempts are used up.

    Args:
        env: time.
        core: core of the client.
        journal: the journal.
        attempts: readings of all replicas.

    Returns:
        The last reading of each replica.
    """
    found: list[Reading] = []
    for attempt in range(attempts):
        if attempt:
            await env.tasks.sleep_ms(PAUSE_MS)
        await core.log(journal, "-").last_id()  # linearizable: `seen` is the last change
        await core.locations.refresh(journal)
        found = [await _read(core, journal, a) for a in journal.tablet.addresses()]
        if len({r.last for r in found}) == 1 and not any(r.problem for r in found):
            break
    return found


async def _read(core: JournalCore, journal: OpenJournal, address: str) -> Reading:
    reader = _Replica(core, journal, address)
    try:
        await reader.run()
    except (NyalaError, _Changed) as err:
        reader.found.problem = str(err)
    return reader.found


class _Replica:
    """One reading of one replica.

    Args:
        core: core of the client.
        journal: the journal.
        address: address of the replica.
    """

    def __init__(self, core: JournalCore, journal: OpenJournal, address: str) -> None:
        self._core = core
        self._journal = journal
        self._digest = hashlib.blake2b(digest_size=8)
        self._begun = False
        self.found = Reading(address)

    async def run(self) -> None:
        """Read all of it.

        Raises:
            _Changed: it changed meanwhile. NyalaError: as the server.
        """
        log, entries, after = pb.JournalLog(), 0, 0
        async for page in content_pages(self._read):
            for content in page:
                if content.log.name != log.name:
                    self._check_entries(log, entries)
                    name = content.log.name
                    self._check(log.name < name, f"the order of log {name!r}")
                    log, entries, after = content.log, 0, 0
                    self._add(log.name, log.created, log.last)
                    self.found.logs += 1
                for entry in content.entries:
                    what = f"the id of entry {entry.id} of log {log.name!r}"
                    self._check(after < entry.id <= log.last, what)
                    self._add(entry.id, entry.data)
                    after = entry.id
                entries += len(content.entries)
        self._check_entries(log, entries)
        await self._read_keys()
        self.found.digest = self._digest.hexdigest()

    def _check_entries(self, log: pb.JournalLog, entries: int) -> None:
        self._check(entries == log.entries, f"the number of entries of log {log.name!r}")
        self.found.entries += entries

    async def _read(self, request: pb.JournalReadRequest) -> pb.JournalReadResponse:
        request.least = self._journal.seen
        found = await self._core.reads.read_at(
            self._journal, request, self.found.address, MAX_AGE_MS
        )
        if self._begun and self.found.last != found.last:
            raise _Changed("the journal changed while it was read")
        self._begun, self.found.last = True, found.last
        return found

    async def _read_keys(self) -> None:
        after = ""
        while True:
            wanted = pb.ListKeys(after=after)
            page = (await self._read(pb.JournalReadRequest(keys=wanted))).keys
            for key in page.keys:
                self._check(after < key.key, f"the order of key {key.key!r}")
                self._check(0 < key.version <= self.found.last, f"the version of key {key.key!r}")
                self._add(key.key, key.version, key.value)
                after = key.key
            self.found.keys += len(page.keys)
            if not page.more:
                return

    def _check(self, fine: bool, what: str) -> None:
        if not fine and not self.found.problem:
            self.found.problem = f"{what} is wrong"

    def _add(self, *parts: object) -> None:
        for part in parts:
            data = part if isinstance(part, bytes) else str(part).encode()
            self._digest.update(len(data).to_bytes(8, "little") + data)
