"""Reads of a journal: linearizable ones at the leader, or of any replica that is not too old."""

from typing import NoReturn

from nyala.client.cluster.leader_operation import THROTTLED_PAUSE_MS, TRY_TIMEOUT_MS
from nyala.client.cluster.leader_search import LeaderSearch
from nyala.client.cluster.tablet_cache import LOOKUP_TIMEOUT_MS
from nyala.client.deadline import Attempts
from nyala.client.journal.locations import JournalLocations, OpenJournal
from nyala.common.errors import LogGone, NotLeader, OutcomeUnknown, Retryable, Throttled, TimedOut
from nyala.env.clock import HybridClock
from nyala.env.env import Env
from nyala.wire import methods
from nyala.wire.proto import journal_pb2 as pb


class JournalReads:
    """Reads of one client. Runs on the client's loop.

    Args:
        env: RPCs, time, random source.
        locations: locations of journals.
        clock: merges the times of the states that are read.
        timeout_ms: for each read, with its retries.
    """

    def __init__(
        self, env: Env, locations: JournalLocations, clock: HybridClock, timeout_ms: int
    ) -> None:
        self._env = env
        self._locations = locations
        self._clock = clock
        self._timeout_ms = timeout_ms

    async def read(
        self, journal: OpenJournal, request: pb.JournalReadRequest, *, max_age_ms: int = 0
    ) -> pb.JournalReadResponse:
        """Read one state of a journal.

        Args:
            journal: the journal.
            request: names what is read.
            max_age_ms: largest age of the state, which any replica may give then, and which includes all
                that this client has seen; 0: linearizable. If no replica is fresh enough, the leader answers.

        Raises:
            LogGone: the log that the request names by its creation was deleted.
            NotFound: the journal was dropped.
            TimedOut: no replica answered in time.
        """
        attempts = Attempts(self._env, self._timeout_ms)
        if max_age_ms:
            found = await self._read_stale(journal, request, max_age_ms, attempts)
            if found is not None:
                return found
        request.max_age_ms = request.least = 0
        return await self._read_latest(journal, request, attempts)

    async def read_at(
        self, journal: OpenJournal, request: pb.JournalReadRequest, address: str, max_age_ms: int
    ) -> pb.JournalReadResponse:
        """Read the state of the replica at an address, once.

        Args:
            journal: the journal.
            request: names what is read.
            address: address of the replica.
            max_age_ms: largest age of the state.

        Raises:
            Retryable, LogGone: as the server.
        """
        request.max_age_ms = max_age_ms
        return await self._read_replica(
            journal, request, address, min(self._timeout_ms, TRY_TIMEOUT_MS)
        )

    async def _read_stale(
        self,
        journal: OpenJournal,
        request: pb.JournalReadRequest,
        max_age_ms: int,
        attempts: Attempts,
    ) -> pb.JournalReadResponse | None:
        """Ask each replica once, in random order; None: no replica was fresh enough."""
        request.max_age_ms, request.least = max_age_ms, journal.seen
        addresses = journal.tablet.addresses()
        self._env.random.shuffle(addresses)
        for number, address in enumerate(addresses):
            left_ms = attempts.left_ms() // (
                len(addresses) - number + 1
            )  # the leader gets a share too
            try:
                return await self._read_replica(
                    journal, request, address, max(1, min(left_ms, TRY_TIMEOUT_MS))
                )
            except (Retryable, OutcomeUnknown):
                continue
        return None

    async def _read_latest(
        self, journal: OpenJournal, request: pb.JournalReadRequest, attempts: Attempts
    ) -> pb.JournalReadResponse:
        tablet = journal.tablet
        search = LeaderSearch(self._locations.tablets, tablet)
        while True:
            wait_ms = 0
            for address in tablet.addresses():
                left_ms = attempts.left_ms()
                if left_ms <= 0:
                    break
                try:
                    found = await self._read_replica(
                        journal, request, address, min(left_ms, TRY_TIMEOUT_MS)
                    )
                except NotLeader as err:
                    if search.refused(address, err):
                        break
                except Throttled as err:
                    search.delayed(err)
                    wait_ms = int(err.details.get("retry_after_ms", THROTTLED_PAUSE_MS))
                    break
                except (Retryable, OutcomeUnknown) as err:
                    search.failed(address, err, left_ms)
                except LogGone as err:
                    tablet.leader = address  # only a leader answers so
                    journal.saw_gone(err)
                    raise
                else:
                    tablet.leader = address
                    return found
            else:
                search.end_round()
            if not await attempts.pause(wait_ms):
                _gave_up(journal, search.reason)
            if not tablet.leader:
                try:
                    left_ms = max(1, min(LOOKUP_TIMEOUT_MS, attempts.left_ms()))
                    await self._locations.refresh_shared(journal, left_ms)
                except Retryable as err:
                    search.look_up_failed(err)

    async def _read_replica(
        self, journal: OpenJournal, request: pb.JournalReadRequest, address: str, timeout_ms: int
    ) -> pb.JournalReadResponse:
        request.tablet_id, request.timeout_ms = journal.tablet.id, timeout_ms
        request.propagated_time = self._clock.seen
        response: pb.JournalReadResponse = await self._env.rpc.call(
            address, methods.JOURNAL_READ, request, timeout_ms=timeout_ms
        )
        self._clock.merge(response.at)
        journal.saw(response.last)
        return response


def _gave_up(journal: OpenJournal, last: str) -> NoReturn:
    raise TimedOut(
        f"no leader of journal {journal.name!r} answered a read in time; at last: {last}. "
        "Check: nyala cluster ksck; or read followers with max_age_ms"
    )
