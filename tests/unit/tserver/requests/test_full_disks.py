"""Full disks of all servers: the client's error says so, and what to do; then writes continue."""

import re
from dataclasses import replace

from nyala.client.journal.core import JournalCore
from nyala.common.errors import NyalaError
from tests.unit.tserver.support.journal_group import entry, with_journal

STEPS = 100
WANTED = re.compile(r"cannot grow \(.*No space left on device.*\): free space on its disk")


def test_error_of_append_names_full_disk():
    async def work(group):
        group.core.options = replace(group.core.options, timeout_ms=6_000)
        journals = JournalCore(group.core)

        async def open_() -> object:
            return await journals.open("ops")

        journal = await group.on(open_)

        async def append() -> NyalaError | None:
            try:
                await journals.step(journal, [], [entry("x" * 100_000)])
            except NyalaError as err:
                return err
            return None

        for server in group.cluster.tservers:
            server.disk.faults.capacity_bytes = server.disk.used_bytes()
        refusals = []
        for _ in range(STEPS):
            refusal = await group.on(append)
            if refusal is not None:
                refusals.append(refusal)
            if len(refusals) == 2:
                break
        assert len(refusals) == 2
        assert all(WANTED.search(r.message) for r in refusals), refusals
        for server in group.cluster.tservers:
            server.disk.faults.capacity_bytes = None
        assert await group.on(append) is None

    with_journal(work)
