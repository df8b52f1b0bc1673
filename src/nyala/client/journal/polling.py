"""Requests for what changed in a journal after an id: to any replica, one at a time, until one answers."""

import asyncio
from typing import Any

from nyala.client.cluster.leader_search import LeaderSearch
from nyala.client.cluster.tablet_cache import LOOKUP_TIMEOUT_MS
from nyala.client.deadline import Attempts
from nyala.client.journal.locations import JournalLocations, OpenJournal
from nyala.common.errors import (
    LogGone,
    NotLeader,
    NyalaError,
    OutcomeUnknown,
    Retryable,
    TimedOut,
    Unavailable,
)
from nyala.env.env import Env
from nyala.wire import methods, status
from nyala.wire.proto import journal_pb2 as pb

WAIT_MS = 2_000
"""Time that a replica waits for changes before it answers that there are none, in milliseconds."""
SILENT_MS = 3_000
"""Time beyond that after which a replica that does not answer is given up, in milliseconds."""
TURNS = 1 << 16
"""Number of turns from which a tail begins to ask the other replicas."""
LOOK_UP_TURNS = 8
"""Number of turns without changes after which the replicas are looked up again."""


class TailStream:
    """The stream of one tail to one server; one request at a time.

    Args:
        env: opens the stream.
        address: address of the server.
    """

    def __init__(self, env: Env, address: str) -> None:
        self._address = address
        self._number = 0
        self._answer: asyncio.Future[pb.JournalTailResponse] | None = None
        self.broken = False
        self._stream = env.rpc.request_stream(address, methods.JOURNAL_TAIL, self._on_response)

    async def ask(self, request: pb.JournalTailRequest) -> pb.JournalTailResponse:
        """Send a request and wait for its answer.

        Raises:
            Unavailable: the stream ended, or the server is silent.
            NyalaError: the server's own.
        """
        self._number += 1
        request.request = self._number
        answer: asyncio.Future[pb.JournalTailResponse]
        answer = self._answer = asyncio.get_running_loop().create_future()
        self._stream.send(request)
        try:
            async with asyncio.timeout((request.wait_ms + SILENT_MS) / 1000):
                response = await answer
        except TimeoutError:
            self.close()
            raise Unavailable(
                f"{self._address} did not answer a request for changes in time"
            ) from None
        finally:
            self._answer = None
        if response.HasField("error"):
            raise status.from_proto(response.error)
        return response

    def _on_response(self, response: Any) -> None:
        ended = isinstance(response, NyalaError)
        self.broken |= ended
        answer = self._answer
        if answer is None or answer.done():
            return
        if ended:
            answer.set_exception(Unavailable(f"{self._address}: {response.message}"))
            answer.exception()  # so that it is not reported if the reader is cancelled before it gets it
        elif response.request == self._number:
            answer.set_result(response)

    def close(self) -> None:
        """End the stream at once."""
        if not self.broken:
            self.broken = True
            self._stream.abandon()


class Poller:
    """Requests of one tail or watch, to the leader first; any replica that has the changes may answer.

    A replica that is partitioned from its group answers that nothing changed. So after each such
    answer another replica is queried too, without waiting. If that one fails, or none has had changes
    for `LOOK_UP_TURNS`, the replicas are looked up again: the group may have moved, and replicas that
    it has removed get no changes.

    The first answer is of a state that includes all that this client has seen: else a replica that was
    removed would show a log again that the client has seen to be deleted. If no replica has such a state,
    as after a recovery from the loss of a majority, any state will do.

    Args:
        env: RPCs, time.
        locations: locations of journals.
        journal: the journal.
        timeout_ms: deadline of each poll, with its retries.
    """

    def __init__(
        self, env: Env, locations: JournalLocations, journal: OpenJournal, timeout_ms: int
    ) -> None:
        self._env = env
        self._locations = locations
        self._journal = journal
        self._timeout_ms = timeout_ms
        self._streams: dict[str, TailStream] = {}
        self._least = journal.seen
        self._quiet = ""  # address whose last answer was that nothing changed
        self._turn = env.random.randrange(TURNS)  # a reader that resumes often asks all of them too

    async def poll(
        self, request: pb.JournalTailRequest, *, wait: bool = True
    ) -> pb.JournalTailResponse:
        """Return the answer of some replica; after a while without changes, an empty one.

        Args:
            request: names the log or the keys, and the id.
            wait: False: an answer without changes comes at once.

        Raises:
            LogGone: the log that the request names by its creation was deleted.
            TimedOut: no replica answered in time.
            NotFound: the journal was dropped.
        """
        found = await self._check_quiet(request)
        if found is not None:
            return found
        attempts = Attempts(self._env, self._timeout_ms)
        search = LeaderSearch(self._locations.tablets, self._journal.tablet)
        while True:
            for address in self._journal.tablet.addresses():
                left_ms = attempts.left_ms()
                if not left_ms:
                    break
                request.least = self._least
                try:
                    found = await self._poll_replica(address, request, WAIT_MS * wait)
                except NotLeader as err:
                    if search.refused(address, err):
                        break
                except (Retryable, OutcomeUnknown) as err:
                    search.failed(address, err, left_ms)
                else:
                    self._quiet = "" if _has_changes(found) else address
                    self._least = 0
                    return found
            else:
                search.end_round()
                self._least = 0
            if not await attempts.pause():
                raise TimedOut(
                    f"no replica of journal {self._journal.name!r} answered a request for changes in time; "
                    f"at last: {search.reason}. Check: nyala cluster ksck; "
                    "then follow it again from the last id"
                )
            if not self._journal.tablet.leader:
                await self._refresh()

    async def _check_quiet(self, request: pb.JournalTailRequest) -> pb.JournalTailResponse | None:
        """After an answer that nothing changed, return the changes that another replica has, if any."""
        quiet, self._quiet = self._quiet, ""
        others = [a for a in self._journal.tablet.addresses() if a != quiet]
        if not quiet or not others:
            return None
        self._turn += 1
        try:
            found = await self._poll_replica(others[self._turn % len(others)], request, 0)
        except (Retryable, OutcomeUnknown):
            await self._refresh()
            return None
        if not _has_changes(found):
            if self._turn % LOOK_UP_TURNS == 0:
                await self._refresh()
            return None
        await self._refresh()  # that replica may not lead any more
        return found

    async def _poll_replica(
        self, address: str, request: pb.JournalTailRequest, wait_ms: int
    ) -> pb.JournalTailResponse:
        request.tablet_id, request.wait_ms = self._journal.tablet.id, wait_ms
        stream = self._streams.get(address)
        if stream is None or stream.broken:
            # Those of servers that ended leave the mapping.
            self._streams = {a: s for a, s in self._streams.items() if not s.broken}
            stream = self._streams[address] = TailStream(self._env, address)
        try:
            return await stream.ask(request)
        except LogGone as err:
            self._journal.saw_gone(err)
            raise

    async def _refresh(self) -> None:
        """Look up the replicas; a failure is ignored: the caller retries."""
        try:
            await self._locations.refresh_shared(self._journal, LOOKUP_TIMEOUT_MS)
        except Retryable:
            return

    def close(self) -> None:
        """End all streams."""
        for stream in self._streams.values():
            stream.close()
        self._streams.clear()


def _has_changes(found: pb.JournalTailResponse) -> bool:
    return found.rebased or bool(found.events)
