"""Coordinator: one of the coordinators of an ensemble, of which one leads. It opens no sockets."""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass

from nyala.client.core import ClientCore, ClientOptions
from nyala.client.journal.core import JournalCore
from nyala.client.journal.coroutines import JournalCoroutines
from nyala.common.errors import (
    Corrupt,
    NotFound,
    NotLeading,
    NyalaError,
    Unavailable,
)
from nyala.env.env import Env
from nyala.env.rpc import Handlers
from nyala.ram.checks import (
    check_enlist,
    check_ensemble,
)
from nyala.ram.ids import ServerId
from nyala.ram.requests import ClientRequests
from nyala.ram.term import ALIVE_KEYS, CoordinatorTerm, Point
from nyala.ram.upkeep import Upkeep
from nyala.ram.will import PART_LIMIT, TabletLoad
from nyala.recipes.candidate import LeaderCandidate
from nyala.recipes.records import ElectionSettings, leader_info
from nyala.wire import methods
from nyala.wire.proto import ram_pb2 as pb

ALIVE_TIMEOUT_MS = 1_000

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CoordinatorConfig:
    """Configuration of a coordinator.

    Attributes:
        address: host:port at which it serves.
        ensemble: name of the ensemble, and of its log.
        timeout_ms: time without changes of the log after which its leader may be replaced.
        back_off_ms: longest pause of a candidate that found an active leader.
        ping_ms: interval of the pings of servers.
        call_ms: time for each call to a server.
        limit: of a part of a will.
    """

    address: str
    ensemble: str = "coordinator"
    timeout_ms: int = 3_000
    back_off_ms: int = 4_500
    ping_ms: int = 500
    call_ms: int = 1_000
    limit: TabletLoad = PART_LIMIT


async def open_journal(env: Env, masters: list[str], name: str) -> JournalCoroutines:
    """Open the journal of an ensemble.

    Args:
        env: the environment.
        masters: addresses of the masters of the journal's cluster.
        name: name of the journal.
    """
    core = JournalCore(ClientCore(env, masters, ClientOptions(timeout_ms=30_000)))
    return JournalCoroutines(core, await core.open(name))


async def leader_address(journal: JournalCoroutines, ensemble: str) -> str:
    """Return the address of the coordinator that leads; empty: none does."""
    found = leader_info(await journal.get(f"leader/{ensemble}"))
    return "" if found is None else found.locator


async def note_alive(journal: JournalCoroutines, ensemble: str, address: str) -> None:
    """Note in the journal that a server is alive, which no leader has pinged for a while.

    Args:
        journal: of the ensemble.
        ensemble: its name.
        address: of the server.
    """
    step = journal.builder()
    step.set(f"{ALIVE_KEYS}{ensemble}/{address}", b"")
    await journal.step(*step.parts, timeout_ms=ALIVE_TIMEOUT_MS)


class Coordinator:
    """A coordinator: a candidate that follows the log, and leads by it when it is elected.

    Args:
        env: the environment.
        config: see `CoordinatorConfig`.
        journal: journal of the log.
        point: called at each crash point, for tests.
        on_end: called when it can lead and follow no more, for instance since the journal was dropped.

    Attributes:
        term: state and operations.
        upkeep: of the term, once it leads.

    Raises:
        InvalidArgument: the configuration has no name of an ensemble, or no address.
    """

    def __init__(
        self, env: Env, config: CoordinatorConfig, journal: JournalCoroutines,
        point: Point = lambda name: None, on_end: Callable[[NyalaError], object] = lambda error: None,
    ) -> None:  # fmt: skip
        check_ensemble(config.ensemble, config.address)
        self._env = env
        self._config = config
        self._journal = journal
        self._point = point
        self._on_end = on_end
        settings = ElectionSettings(
            config.ensemble, config.address, config.address, config.timeout_ms, config.back_off_ms
        )
        self._candidate = LeaderCandidate(journal, settings, self._on_lost)
        self._rounds: asyncio.Task[object] | None = None
        self._task: asyncio.Task[object] | None = None
        self._failed = False
        self.term: CoordinatorTerm
        self.upkeep: Upkeep | None = None

    async def start(self) -> None:
        """Take part in the election, and follow the log."""
        self._new_term()
        self._candidate.start()
        self._task = self._env.tasks.spawn(self._serve(), "coordinator")

    async def close(self) -> None:
        """Resign and stop."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self.term.close()
        await self._candidate.close()

    def _new_term(self) -> None:
        config = self._config
        self.upkeep = None
        self.term = CoordinatorTerm(
            self._journal, config.ensemble, config.call_ms, self._point, self._on_corrupt
        )

    async def _serve(self) -> None:
        while True:
            try:
                await self._candidate.elected()
            except NyalaError as err:
                await self._fail(err)
                return
            try:
                await self._lead()
            except Corrupt as err:
                self._on_corrupt(err)
                return
            except NyalaError as err:
                log.info("the leadership ended: %s", err)
            except Exception as bug:  # of the upkeep: another coordinator is to lead
                log.error("the coordinator failed", exc_info=bug)
                await self._fail(Unavailable(f"the coordinator failed: {bug!r}; its log has more"))
                raise
            self.term.close()
            self._new_term()  # what the lost term knew may be ahead of the log
            await self._env.tasks.sleep_ms(100)

    def _on_corrupt(self, err: Corrupt) -> None:
        """End, since the log has an entry that no coordinator of this version can apply."""
        name = self._config.ensemble
        end = Corrupt(
            f"log {name!r} of the ensemble cannot be replayed: {err.message}. See: nyala ram log. If another "
            f"program appended it: nyala journal invalidate JOURNAL {name} {err.details.get('entry')}, and "
            "start the coordinators again; else start those of the version that has written it",
            err.details,
        )
        self._env.tasks.spawn(self._fail(end), "end of the coordinator")

    async def _fail(self, err: NyalaError) -> None:
        """Lead and follow no more, so that another coordinator may; report why."""
        if not self._failed:
            self._failed = True
            self.term.close()
            await self._candidate.close()
            self._on_end(err)

    async def _lead(self) -> None:
        """Replay, then serve until the leadership is lost.

        Raises:
            Exception: of the upkeep.
        """
        await self.term.take_over(self._candidate.steps)
        log.info("leads ensemble %s with epoch %d", self._config.ensemble, self.term.epoch)
        upkeep = Upkeep(self._env, self.term, self._config.ping_ms, self._config.limit)
        self.upkeep = upkeep
        self._rounds = self._env.tasks.spawn(upkeep.run(), "upkeep")
        await asyncio.gather(self._rounds, return_exceptions=True)
        if not self._rounds.cancelled():
            self._rounds.result()

    async def _on_lost(self, reason: str) -> None:
        log.warning("the leadership is lost: %s", reason)
        if self._rounds is not None:
            self._rounds.cancel()  # `_serve`, which may have noticed it first, makes the next term

    # ---- handlers ----------------------------------------------------------------------------------

    def handlers(self) -> Handlers:
        """Return what it answers."""
        return {
            **ClientRequests(self._leading).handlers(),
            methods.RAM_ENLIST: self._enlist,
            methods.RAM_HINT_CRASHED: self._hint_crashed,
            methods.RAM_COORDINATOR_STATUS: self._status,
        }

    def _leading(self) -> tuple[CoordinatorTerm, Upkeep]:
        """Return the term that serves.

        Raises:
            NotLeading: none does.
        """
        self.term.check()
        if self.upkeep is None:
            raise NotLeading("this coordinator replays its log; retry")
        return self.term, self.upkeep

    async def _enlist(self, request: pb.EnlistRequest) -> pb.EnlistResponse:
        check_enlist(request)
        term, _ = self._leading()
        if request.ensemble != term.ensemble:
            request.ClearField("replaces")  # another ensemble's server has the same id
        payload = await term.execute("enlist", request)
        up = pb.Records.FromString(payload).records[-1].server_up
        return pb.EnlistResponse(id=up.id, epoch=term.epoch, ensemble=term.ensemble)

    async def _hint_crashed(self, request: pb.HintCrashedRequest) -> pb.HintCrashedResponse:
        term, upkeep = self._leading()
        server = ServerId.of(request.id)
        if server not in term.state.servers.servers:
            raise NotFound(f"the ensemble has no server {server}; see: nyala ram servers")
        if not term.state.servers.is_up(server):
            return pb.HintCrashedResponse(crashed=True)
        if await upkeep.answers(server):
            return pb.HintCrashedResponse(crashed=False)
        with contextlib.suppress(NotFound):  # it crashed meanwhile
            await term.execute("crash", server)
        return pb.HintCrashedResponse(crashed=True)

    async def _status(self, _request: pb.CoordinatorStatusRequest) -> pb.CoordinatorStatusResponse:
        """Answer also while another coordinator leads."""
        return pb.CoordinatorStatusResponse(
            ensemble=self._config.ensemble, epoch=self._candidate.epoch,
            serves=self._candidate.acts and self.upkeep is not None, reached=self.term.reached,
        )  # fmt: skip
