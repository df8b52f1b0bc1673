"""The end of a run: all is healed, so within a bounded time everything is as the log says, and only so."""

import asyncio
import json
from typing import Any

from nyala.ram.coordinator import Coordinator
from nyala.ram.ids import HashRange
from nyala.ram.server_list import ServerStatus
from nyala.recipes.records import ALIVE
from nyala.wire import methods
from nyala.wire.proto import ram_pb2 as pb
from tests.sim.ensembles.commits import described, is_lint_free, words
from tests.sim.ensembles.ensemble import SimulatedEnsemble, serves
from tests.sim.ensembles.model import Piece, assert_covered, table_of

ANSWER_S = 90
"""Longest time until every client is answered after healing, in seconds."""
LOADS_S = 5
"""Time in which the leader notes the last loads that servers have reported, in seconds."""
SETTLE_S = 60
"""Longest time until servers own what the log says, in seconds."""
TAKE_OVER_S = 15
"""Longest time until a crashed leader is replaced, in seconds: timeout, twice the back-off, and some."""


async def settle(ensemble: SimulatedEnsemble) -> None:
    """Wait until clients are answered and all is quiet; check everything, also under the next leader."""
    cluster = ensemble.cluster
    before = {a: a.answered for a in ensemble.actors}

    def answered() -> bool:
        for work in ensemble.working:
            if work.done():
                work.result()  # raises what a client has found wrong
        return all(a.answered > n for a, n in before.items())

    await cluster.until(answered, "every client is answered after healing", ANSWER_S)
    for actor in ensemble.actors:
        actor.stopped = True
    ensemble.keep_loads()
    await ensemble.loop.delay(LOADS_S * 1e6)
    await asyncio.gather(*ensemble.working)
    await cluster.until(lambda: not differs(ensemble), "it is settled", SETTLE_S)
    check_quiet(ensemble)
    dump = await _dump(ensemble)
    leader = ensemble.leader()
    assert leader is not None
    leader.kill(power_cut=False)
    await cluster.until(lambda: ensemble.leader() is not None, "the next leader", TAKE_OVER_S)
    leader.start()
    await cluster.until(lambda: not differs(ensemble), "it is settled again", SETTLE_S)
    check_quiet(ensemble)
    assert await _dump(ensemble) == dump, "the next leader has another state"


async def _dump(ensemble: SimulatedEnsemble) -> Any:
    """Return the leader's dump, as a client gets it."""
    process = ensemble.cluster.new_process()
    actor = ensemble.actor(process)
    found = await process.run(actor.ask, methods.RAM_DUMP, pb.DumpRequest())
    assert found is not None, "no answer although all is well"
    return json.loads(found.json)


def _coordinator(ensemble: SimulatedEnsemble) -> Coordinator | None:
    return next((c for _, c in ensemble.running() if serves(c)), None)


def differs(ensemble: SimulatedEnsemble) -> str:
    """Return in what way servers or other coordinators differ from the leader's state; empty: in none."""
    leader = _coordinator(ensemble)
    if leader is None:
        return "nobody leads"
    state, members = leader.term.state, ensemble.members()
    known = {s.id for s in state.servers.with_status(ServerStatus.UP)}
    by_id = {m.id: m for m in members.values()}
    if len(by_id) < len(ensemble.servers) or known != by_id.keys():
        return f"up are {sorted(known)}, and there are {sorted(by_id)}"
    if state.servers.servers.keys() != known or state.servers.confirmed < state.servers.version:
        return f"servers {sorted(state.servers.servers)}, confirmed {state.servers.confirmed}"
    for server, member in by_id.items():
        owned = state.tablets.owned_by(server)
        if sorted(member.owned) != owned:
            return f"{server} owns {sorted(member.owned)}, not {owned}"
        if {*member.servers.items} != {str(s) for s in known}:
            return f"{server} has the list {sorted(member.servers.items)}"
    for process, other in ensemble.running():
        if described(other.term.state) != described(state):
            return f"{process.name} follows with {other.term.state.dump()}, not {state.dump()}"
    return ""


def check_quiet(ensemble: SimulatedEnsemble) -> None:
    """Check a quiet ensemble: its log is lint-free, and every tablet has one owner, which is up.

    Raises:
        AssertionError: with what differs.
    """
    leader, log, model = _coordinator(ensemble), ensemble.log, ensemble.model
    assert leader is not None
    state, valid = leader.term.state, list(log.valid[-1].values())
    assert is_lint_free(valid, state), f"the log is not lint-free: {valid}"
    others = [data for data in valid if words(data) is None]
    assert len(others) == 1, f"entries of leaders: {others}"
    assert others[0].startswith(ALIVE), f"no entry of a leader: {others[0]!r}"
    replayed = log.replayed(log.position)
    assert described(state) == replayed, f"the leader has {state.dump()}, a replay {replayed}"
    tables = {t.id: table_of(t) for t in state.tablets.tables.values()}
    wanted = {t.id: t for t in model.tables.values()}
    assert tables == wanted, f"the leader has {tables}, the model {wanted}"
    next_id, version = state.tablets.next_id, state.servers.version
    assert next_id == model.highest + 1, f"the next id is {next_id} after {model.highest}"
    confirmed = state.servers.confirmed
    assert version == model.version == confirmed, (
        f"the list has version {version}, in the model {model.version}, confirmed {confirmed}"
    )
    _check_owned(ensemble)
    ensemble.checks["quiet moments"] += 1


def _check_owned(ensemble: SimulatedEnsemble) -> None:
    """Check that the tablets at servers are those of the tables, each once."""
    found: dict[int, list[Piece]] = {}
    for member in ensemble.members().values():
        for tablet in member.owned:
            assert isinstance(tablet, HashRange)
            found.setdefault(tablet.table_id, []).append(
                Piece(tablet.first, tablet.last, member.id)
            )
    for table in ensemble.model.tables.values():
        pieces = sorted(found.pop(table.id, []), key=lambda p: p.first)
        assert_covered(pieces)
        assert tuple(pieces) == table.pieces, f"{table} is owned as {pieces}"
    assert not found, f"servers own tablets of no table: {found}"
