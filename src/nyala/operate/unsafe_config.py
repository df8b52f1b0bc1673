"""Unsafe change of configuration of a group that lost its majority: plan, order, wait."""

from collections.abc import Sequence
from dataclasses import dataclass

from nyala.common.errors import InvalidArgument, NotFound, TimedOut, Unavailable
from nyala.common.ids import OpId, ServerUuid
from nyala.env.env import Env
from nyala.operate.survivors import (
    ASK_MS,
    ServerEndpoint,
    Survivor,
    has_majority,
    highest_known,
    lender,
    of_tablets,
    replicas,
)
from nyala.raft.quorum import majority
from nyala.raft.reconfiguration.unsafe_recovery import TERM_GAP
from nyala.wire import convert, methods
from nyala.wire.proto import nyala_pb2 as pb

ORDER_MS = 30_000
SETTLE_MS = 60_000
POLL_MS = 100
"""Milliseconds between two checks whether the configuration is committed, or entries are fetched."""
FETCH_MS = 15_000
"""Maximum time for the survivor to fetch entries that only a witness has: some election timeouts."""


@dataclass(frozen=True, slots=True)
class UnsafeConfigPlan:
    """The change, and its risks.

    Attributes:
        tablet: its id.
        target: the survivor that is to become leader.
        keep: uuids of members that stay.
        removed: uuids of members that are removed, of the committed and of the active configuration.
        cluster: id of the cluster.
        term: minimum term of the new entry.
        known: highest index that any replica is known to have had.
        risks: risks of the change.
    """

    tablet: str
    target: Survivor
    keep: tuple[str, ...]
    removed: tuple[str, ...]
    cluster: str
    term: int
    known: int
    risks: tuple[str, ...]

    @property
    def done(self) -> bool:
        """True if the survivor has this configuration already."""
        active = self.target.active
        return bool(active.lost) and {m.uuid for m in active.members} == set(self.keep)


async def plan(
    env: Env, tablet: str, target: ServerEndpoint, keep: Sequence[str]
) -> UnsafeConfigPlan:
    """Make the plan from the survivor and every server in its configurations.

    If a witness has a newer log than the survivor, wait until the survivor has fetched its entries.

    Args:
        env: the environment: clock, tasks, files, calls.
        tablet: id of the tablet.
        target: the surviving server that gets the configuration.
        keep: uuids of the members that stay.

    Raises:
        Unavailable: the survivor does not answer. NotFound: it has no such replica.
        InvalidArgument: it has failed.
    """
    info = await env.rpc.call(
        target.address, methods.SERVER_INFO, pb.ServerInfoRequest(), timeout_ms=ASK_MS
    )
    if info.role != "tserver":
        raise InvalidArgument(f"{target.address} is a {info.role}; name a tablet server")
    on_target = await replicas(env, ServerEndpoint(info.uuid, target.address), [tablet])
    if on_target is None:
        raise Unavailable(f"{target.address} does not answer; name a server that has survived")
    if tablet not in on_target:
        raise NotFound(
            f"the server {info.uuid} at {target.address} has no replica of {tablet}; choose another: nyala "
            f"tablet survivors {tablet}"
        )
    survivor = on_target[tablet]
    if not survivor.healthy:
        raise InvalidArgument(
            f"the replica at {target.address} is {survivor.state} {survivor.error}; choose another survivor: "
            f"nyala tablet survivors {tablet}"
        )
    healthy = await _healthy_members(env, tablet, survivor)
    if lender(survivor, healthy) is not None:
        survivor = healthy[0] = await _fetched(env, tablet, survivor, healthy)
    members = {m.uuid for m in (*survivor.committed.members, *survivor.active.members)}
    return UnsafeConfigPlan(
        tablet=tablet,
        target=survivor,
        keep=tuple(keep),
        removed=tuple(sorted(members - {*keep})),
        cluster=info.cluster_id,
        term=max(s.term for s in healthy) + TERM_GAP,
        known=highest_known(healthy),
        risks=tuple(_risks(survivor, healthy, keep)),
    )


async def _healthy_members(env: Env, tablet: str, survivor: Survivor) -> list[Survivor]:
    """Return the survivor, and the replicas on other members of its configurations that answer and run."""
    places = {
        m.uuid: ServerEndpoint(m.uuid, m.address)
        for m in (*survivor.committed.members, *survivor.active.members)
        if m.uuid != survivor.place.uuid
    }
    others = (await of_tablets(env, places.values(), [tablet])).get(tablet, [])
    return [survivor, *(o for o in others if o.healthy)]


async def _fetched(
    env: Env, tablet: str, survivor: Survivor, healthy: Sequence[Survivor]
) -> Survivor:
    """Return the survivor once it has fetched what only a witness had; as it is after `FETCH_MS`."""
    deadline_us = env.clock.monotonic_us() + FETCH_MS * 1000
    while lender(survivor, healthy) is not None and env.clock.monotonic_us() < deadline_us:
        await env.tasks.sleep_ms(POLL_MS)
        now = (await replicas(env, survivor.place, [tablet]) or {}).get(tablet)
        if now is not None and now.healthy:
            survivor = now
    return survivor


def _risks(survivor: Survivor, healthy: Sequence[Survivor], keep: Sequence[str]) -> list[str]:
    found = []
    if has_majority(healthy):
        found.append(
            "a majority of its voters answers: the group needs no recovery; "
            "change its members with nyala tablet change_config"
        )
    best = max(
        (
            s
            for s in healthy
            if all(
                config.may_lead(ServerUuid(s.place.uuid))
                for config in (survivor.committed, s.active)
            )
        ),
        key=lambda s: s.last,
        default=survivor,
    )
    if best.last > survivor.last:
        found.append(
            f"{best.place.uuid} at {best.place.address} has a longer log, up to {best.last}; this "
            f"one's ends at {survivor.last}: choose that server, or the entries between are lost"
        )
    lent = lender(survivor, healthy)
    if lent is not None:
        found.append(
            f"the witness {lent.place.uuid} at {lent.place.address} has entries up to {lent.last}, which "
            f"{survivor.place.uuid} has not fetched in {FETCH_MS // 1000} s; its log ends at "
            f"{survivor.last}. They would be lost: check the network between them, and run this again"
        )
    silent = sorted({*keep} - {s.place.uuid for s in healthy})
    voters = [u for u in survivor.committed.voters if u in keep]
    if voters and len([u for u in voters if u not in silent]) < majority(len(voters)):
        found.append(
            f"{', '.join(silent)} should be kept and do not answer: without them the group would have no "
            "majority again"
        )
    return found


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of the change.

    Attributes:
        changed: False: it had this configuration before.
        last: op id of the last entry that the survivor had before.
        config: op id of the configuration, committed.
        leader: uuid of the leader now.
    """

    changed: bool
    last: OpId
    config: OpId
    leader: str


async def execute(env: Env, todo: UnsafeConfigPlan) -> Outcome:
    """Execute the plan, and wait until a leader has committed the configuration.

    Raises:
        NyalaError: the server refused it; nothing was changed.
        TimedOut: the order was executed, but no leader has committed the configuration yet.
    """
    answer = await env.rpc.call(
        todo.target.place.address,
        methods.UNSAFE_CHANGE_CONFIG,
        pb.UnsafeChangeConfigRequest(
            destination_uuid=todo.target.place.uuid,
            cluster_id=todo.cluster,
            tablet_id=todo.tablet,
            keep=todo.keep,
            term=todo.term,
        ),
        timeout_ms=ORDER_MS,
    )
    config = convert.configuration_from_proto(answer.consensus)
    deadline_us = env.clock.monotonic_us() + SETTLE_MS * 1000
    while True:
        seen = await replicas(env, todo.target.place, [todo.tablet])
        now = (seen or {}).get(todo.tablet)
        if now is not None and now.committed.id >= config.id and now.state == "RUNNING":
            break
        if env.clock.monotonic_us() > deadline_us:
            raise TimedOut(
                f"the configuration of {config.id} is in the log of {todo.target.place.uuid}, and no leader "
                "has committed it: start all members that are kept, and run the same command again"
            )
        await env.tasks.sleep_ms(POLL_MS)
    last = OpId(answer.last_term, answer.last_index)
    return Outcome(answer.changed, last, now.committed.id, now.role)
