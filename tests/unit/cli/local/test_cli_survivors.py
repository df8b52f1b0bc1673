"""Choice of a survivor: the order of the remaining replicas, majorities, lost entries."""

import asyncio
from typing import Any

import pytest

from nyala.common.errors import InvalidArgument, NotFound, Unavailable
from nyala.common.ids import OpId, ServerUuid, TabletId
from nyala.env.env import Env, system_env
from nyala.operate.survivors import ServerEndpoint, Survivor, has_majority, known_lost, of_tablets
from nyala.operate.unsafe_config import UnsafeConfigPlan, plan
from nyala.raft.membership import Configuration, Member
from nyala.raft.reconfiguration.unsafe_recovery import TERM_GAP
from nyala.wire import convert, methods
from nyala.wire.proto import nyala_pb2 as pb

TABLET = TabletId("a" * 32)
U = [ServerUuid(str(n) * 32) for n in range(6)]


def config(*numbers):
    return Configuration(tuple(Member(U[n], f"p:{n}", f"s:{n}") for n in numbers), OpId(1, 1))


def status(last, *, known_commit=0, state="RUNNING", members=(1, 2, 3), term=4):
    at = convert.consensus_to_proto(config(*members), term, None)
    why = "broken" if state == "FAILED" else ""
    return pb.TabletStatus(
        report=pb.TabletReport(tablet_id=TABLET, state=state, consensus=at, error=why),
        last_term=last.term, last_index=last.index, commit_index=last.index,
        known_commit=known_commit, active=at,
    )  # fmt: skip


class Servers:
    """Transport to servers with these replicas; others do not answer."""

    def __init__(self, found: dict[int, pb.TabletStatus]) -> None:
        self._found = {f"s:{n}": (U[n], one) for n, one in found.items()}

    async def call(self, address: str, method: Any, request: Any, *, timeout_ms: int) -> Any:
        if address not in self._found:
            raise Unavailable(f"{address} is dead")
        uuid, one = self._found[address]
        if method is methods.SERVER_INFO:
            return pb.ServerInfoResponse(uuid=uuid, role="tserver", cluster_id="c")
        if request.tablet_ids and TABLET not in request.tablet_ids:
            raise NotFound("no such tablet")
        return pb.ListTabletsResponse(tablets=[one])


def ask(found, work) -> Any:
    """Run `work(env)` with these servers."""

    async def main():
        env = system_env(Servers(found))  # type: ignore[arg-type]
        try:
            return await work(env)
        finally:
            await env.tasks.close()

    return asyncio.run(main())


def left(found) -> list[Survivor]:
    async def work(env: Env):
        return await of_tablets(
            env, [ServerEndpoint(u, f"s:{n}") for n, u in enumerate(U)], [TABLET]
        )

    survivors_found: list[Survivor] = ask(found, work)[TABLET]
    return survivors_found


def planned(found, target, *keep, tablet=TABLET) -> UnsafeConfigPlan:
    async def work(env: Env):
        return await plan(env, tablet, ServerEndpoint("", f"s:{target}"), [U[n] for n in keep])

    made: UnsafeConfigPlan = ask(found, work)
    return made


@pytest.mark.row("S1.36")
def test_survivors_are_ranked_by_term_then_index_with_failed_last():
    found = {
        1: status(OpId(3, 90)),
        2: status(OpId(4, 80)),
        3: status(OpId(9, 99), state="FAILED"),
        4: status(OpId(4, 81)),
    }
    assert [s.place.uuid for s in left(found)] == [U[4], U[2], U[1], U[3]]
    assert (left(found)[-1].state, left(found)[-1].error) == ("FAILED", "broken")


def test_majority_counts_only_healthy_voters():
    assert has_majority(left({1: status(OpId(1, 1)), 2: status(OpId(1, 1))}))
    assert not has_majority(left({1: status(OpId(1, 1)), 2: status(OpId(1, 1), state="FAILED")}))
    assert not has_majority(left({1: status(OpId(1, 1)), 4: status(OpId(1, 1))}))
    assert not has_majority([])


@pytest.mark.row("S1.40")
def test_known_lost_entries_are_those_others_have_or_were_sent():
    five = (1, 2, 3, 4, 5)
    found = {
        1: status(OpId(3, 90), members=five),
        2: status(OpId(4, 95), members=five, known_commit=97),
    }
    todo = planned(found, 1, 1)
    assert "has a longer log, up to 4.95; this one's ends at 3.90" in todo.risks[0]
    assert (todo.term, todo.removed) == (4 + TERM_GAP, (U[2], U[3], U[4], U[5]))
    assert known_lost(todo.known, OpId(3, 90)) == (91, 97)
    assert planned(found, 2, 1, 2).risks == ()
    assert known_lost(planned(found, 2, 1, 2).known, OpId(4, 95)) == (96, 97)


def test_ineligible_survivor_is_refused():
    found = {1: status(OpId(3, 90), state="FAILED"), 2: status(OpId(4, 95))}
    with pytest.raises(InvalidArgument, match="choose another survivor"):
        planned(found, 1, 1)
    with pytest.raises(Unavailable):
        planned(found, 3, 3)
    with pytest.raises(NotFound, match="has no replica"):
        planned(found, 2, 2, tablet=TabletId("b" * 32))
    assert "do not answer" in planned(found, 2, 2, 3).risks[0]
