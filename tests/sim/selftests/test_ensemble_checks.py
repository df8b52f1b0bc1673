"""The checks of a whole simulated ensemble: each is broken once, and has to report it."""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from nyala.common.errors import StaleEpoch, Unavailable
from nyala.env.env import Env
from nyala.env.files import SystemFiles
from nyala.ram.coordinator import Coordinator
from nyala.ram.ids import LAST_HASH, HashRange, ServerId
from nyala.ram.member import EnsembleMember
from nyala.ram.state import CoordinatorState
from nyala.ram.storage_server import StorageConfig
from nyala.recipes.guard import EpochGuard
from nyala.recipes.records import ALIVE
from nyala.wire import methods
from nyala.wire.proto import ram_pb2 as pb
from tests.sim.ensembles import settle
from tests.sim.ensembles.ensemble import SimulatedEnsemble, serves
from tests.sim.ensembles.history import EnsembleHistory
from tests.sim.ensembles.members import MemberProcess, MemberRules
from tests.sim.ensembles.model import EnsembleModel
from tests.sim.ensembles.scenario import started
from tests.sim.world.loop import SimLoop, run
from tests.sim.world.tasks import SimClock, SimTasks

EPOCH = 7


# ---- late requests -------------------------------------------------------------------------------------


async def no_journal() -> None:
    raise Unavailable("there is no journal")


class Coordinators:
    """Enlists a server as number one, at the leader of epoch 7."""

    async def call(self, method: Any, request: Any, timeout_ms: int) -> Any:
        return pb.EnlistResponse(id=ServerId(1, 1).message(), epoch=EPOCH, ensemble="e")


def late_request() -> Counter[str]:
    """Have a server accept a request of one leader, then of the next; the first one is delivered again."""
    rules = MemberRules(EnsembleModel(EnsembleHistory({})), "member-0", Counter())

    async def main(loop: SimLoop) -> None:
        env = Env(
            SimClock(loop), random.Random(1), SystemFiles(), SimTasks(loop, random.Random(1)), None  # type: ignore[arg-type]
        )  # fmt: skip
        made = MemberProcess(
            env, StorageConfig("m:1", silent_ms=60_000), Coordinators(), no_journal, rules, random.Random(1)  # type: ignore[arg-type]
        )  # fmt: skip
        await made.start()
        await loop.delay(1e6)
        for epoch in (EPOCH, EPOCH + 1):
            fence = pb.Fence(ensemble="e", epoch=epoch, server=ServerId(1, 1).message())
            owned = pb.Owned(table_id=1, first=0, last=LAST_HASH)
            request = pb.TakeTabletOwnershipRequest(fence=fence, tablets=[owned])
            await made.handlers()[methods.RAM_TAKE_OWNERSHIP](request)  # type: ignore[misc, call-arg]
        await loop.delay(5e6)
        await env.tasks.close()

    run(main)
    return rules.checks


def test_late_request_that_is_refused_is_counted():
    assert late_request()["late request refused: StaleEpoch"] == 1


def test_late_request_that_is_accepted_is_reported(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(EpochGuard, "check", lambda self, epoch: None)
    with pytest.raises(AssertionError, match="member-0 accepts a late request"):
        late_request()


def test_late_request_that_is_refused_and_changes_something_is_reported(
    monkeypatch: pytest.MonkeyPatch,
):
    check = EnsembleMember.check

    def checked(self: EnsembleMember, fence: pb.Fence) -> None:
        try:
            check(self, fence)
        except StaleEpoch:
            self.owned.clear()
            raise

    monkeypatch.setattr(EnsembleMember, "check", checked)
    with pytest.raises(AssertionError, match="it changed something"):
        late_request()


# ---- a whole ensemble ----------------------------------------------------------------------------------


class Scene:
    """An ensemble that was at work and is settled; its clients have stopped.

    Args:
        ensemble: all of it.
        patch: undoes a mistake.
    """

    def __init__(self, ensemble: SimulatedEnsemble, patch: pytest.MonkeyPatch) -> None:
        self.ensemble, self.patch = ensemble, patch
        running = [c for _, c in ensemble.running()]
        self.leader: Coordinator = next(c for c in running if serves(c))
        self.follower: Coordinator = next(c for c in running if not serves(c))
        self.state = self.leader.term.state
        owners = [m for m in ensemble.members().values() if m.owned]
        self.one, self.two = owners[:2]

    def entry(self, data: bytes) -> None:
        """Add a valid entry to the log."""
        self.patch.setitem(self.ensemble.log.valid[-1], 1 << 40, data)

    def entry_of_the_leader(self) -> int:
        """Return the id of the entry of the leader."""
        valid = self.ensemble.log.valid[-1]
        return next(i for i, data in valid.items() if data.startswith(ALIVE))

    def request(self) -> asyncio.Task[Any]:
        """Have a client create a table."""
        return create(self.ensemble, f"late{len(self.ensemble.history.calls)}", 1)


def create(ensemble: SimulatedEnsemble, name: str, span: int) -> asyncio.Task[Any]:
    """Have a client create a table."""
    process = ensemble.cluster.new_process()
    request = pb.CreateTableRequest(
        name=name, server_span=span, operation=pb.OperationId(client=f"creator of {name}")
    )
    return process.run(ensemble.actor(process).ask, methods.RAM_CREATE_TABLE, request)


def scene(act: Callable[[Scene], Awaitable[None]]) -> None:
    """Prepare an ensemble, and apply a mistake."""

    async def scenario(loop: SimLoop) -> None:
        with started(loop, 1, 3) as (ensemble, _):
            await ensemble.cluster.until(lambda: len(ensemble.members()) > 1, "two servers")
            for actor in ensemble.actors:
                actor.stopped = True
            await asyncio.gather(*ensemble.working)
            await create(ensemble, "at two servers", 2)
            await ensemble.cluster.until(lambda: not settle.differs(ensemble), "it is settled")
            with pytest.MonkeyPatch.context() as patch:
                await act(Scene(ensemble, patch))

    run(scenario, max_time_s=600)


Mistake = tuple[str, Callable[[Scene], object]]
AHEAD: Mistake = ("the leader of epoch", lambda s: s.patch.setattr(s.state.tablets, "largest", 99))
TWICE: Mistake = (
    "not lint-free",
    lambda s: s.entry(
        b"done create_table " + pb.Record(alive_table=pb.Table(id=1 << 20)).SerializeToString()
    ),
)
LOOKS: list[Mistake] = [
    (
        "leaders of .* serve",
        lambda s: [
            s.patch.setattr(s.follower, n, getattr(s.leader, n)) for n in ("term", "upkeep")
        ],
    ),
    (
        "a bug",
        lambda s: s.patch.setattr(s.ensemble.servers[0], "failures", [AssertionError("a bug")]),
    ),
]
QUIET: list[Mistake] = [
    TWICE,
    ("not lint-free", lambda s: s.patch.setattr(s.state.tablets, "largest", 99)),
    ("entries of leaders", lambda s: s.entry(ALIVE + b"{}")),
    (
        "no entry of a leader",
        lambda s: s.patch.setitem(s.ensemble.log.valid[-1], s.entry_of_the_leader(), b"x"),
    ),
    ("a replay", lambda s: s.patch.setattr(s.state.servers, "highest", 1 << 20)),
    ("the leader has .* the model", lambda s: s.patch.setattr(s.ensemble.model, "tables", {})),
    ("the next id is", lambda s: s.patch.setattr(s.ensemble.model, "highest", 0)),
    ("the list has version", lambda s: s.patch.setattr(s.ensemble.model, "version", 0)),
    ("begins after|have no tablet", lambda s: s.patch.setattr(s.one, "owned", set())),
    ("begins after", lambda s: s.patch.setattr(s.two, "owned", s.one.owned | s.two.owned)),
    (
        "is owned as",
        lambda s: [
            s.patch.setattr(a, "owned", owned)
            for a, owned in ((s.one, s.two.owned), (s.two, s.one.owned))
        ],
    ),
    (
        "tablets of no table",
        lambda s: s.patch.setattr(s.one, "owned", s.one.owned | {HashRange(1 << 20, 0, 1)}),
    ),
]
DIFFERENCES: list[Mistake] = [
    ("nobody leads", lambda s: s.patch.setattr(s.leader, "upkeep", None)),
    ("up are", lambda s: s.patch.setattr(s.one, "id", ServerId(99, 99))),
    ("confirmed 0", lambda s: s.patch.setattr(s.state.servers, "confirmed", 0)),
    ("owns", lambda s: s.patch.setattr(s.one, "owned", set())),
    ("has the list", lambda s: s.patch.setattr(s.one.servers, "items", {})),
    ("follows with", lambda s: s.patch.setattr(s.follower.term.state.tablets, "largest", 99)),
]


def test_state_or_log_of_an_ensemble_that_breaks_a_rule_is_reported():
    async def act(s: Scene) -> None:
        patch, loop = s.patch, s.ensemble.loop

        async def reported(mistakes: list[Mistake], check: Callable[[], object]) -> None:
            for match, mistake in mistakes:
                check()
                await loop.delay(10_000)  # until the next look
                with pytest.MonkeyPatch.context() as s.patch:
                    mistake(s)
                    with pytest.raises(AssertionError, match=match):
                        check()
            s.patch = patch

        def differs() -> None:
            found = settle.differs(s.ensemble)
            assert not found, found

        await reported([AHEAD], s.ensemble.compare_leaders)
        await reported(QUIET, lambda: settle.check_quiet(s.ensemble))
        await reported(DIFFERENCES, differs)
        loop.after_step = lambda: None
        await reported(LOOKS, s.ensemble.look)

    scene(act)


@pytest.mark.parametrize(
    ("match", "mistake"),
    [("not lint-free|the leader of epoch", TWICE[1]), AHEAD],
    ids=["twice", "ahead"],
)
def test_mistake_is_reported_before_the_leader_appends(
    match: str, mistake: Callable[[Scene], object]
):
    async def act(s: Scene) -> None:
        leader, s.ensemble.loop.after_step = s.ensemble.leader(), lambda: None
        assert leader is not None
        mistake(s)
        asking = s.request()
        await s.ensemble.cluster.until(lambda: bool(leader.failures), "a failed check")
        asking.cancel()
        with pytest.raises(AssertionError, match=match):
            s.ensemble.look()
        leader.failures.clear()
        s.ensemble.loop.failures.clear()

    scene(act)


def test_ensemble_that_does_not_settle_is_reported(monkeypatch: pytest.MonkeyPatch):
    async def act(s: Scene) -> None:
        async def reported(match: str) -> None:
            with pytest.raises(AssertionError, match=match):
                await settle.settle(s.ensemble)

        for name in ("ANSWER_S", "SETTLE_S"):
            monkeypatch.setattr(settle, name, 1)
        await reported("every client is answered after healing: not within 1 s")
        s.ensemble.actors.clear()
        with s.patch.context() as patch:
            patch.setattr(s.follower.term.state.tablets, "largest", 99)
            await reported("it is settled: not within 1 s")
        with s.patch.context() as patch:
            patch.setattr(EnsembleMember, "set_all", lambda self, tablets: self.owned.clear())
            # Servers that own nothing report other loads, which the next leader may note first.
            await reported("it is settled again: not within 1 s|the next leader has another state")
        await s.ensemble.cluster.until(lambda: not settle.differs(s.ensemble), "it is settled", 60)
        with s.patch.context() as patch:
            patch.setattr(CoordinatorState, "dump", lambda self: id(self))
            await reported("the next leader has another state")
        await s.ensemble.cluster.until(lambda: not settle.differs(s.ensemble), "it is settled", 60)
        monkeypatch.setattr(settle, "TAKE_OVER_S", 1)
        await reported("the next leader: not within 1 s")

    scene(act)
