"""Surviving replicas of a tablet: their logs, and the check for a majority (S1.36)."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from nyala.common.errors import NotFound, NyalaError
from nyala.common.ids import OpId, ServerUuid
from nyala.env.env import Env
from nyala.raft.membership import Configuration
from nyala.raft.quorum import majority
from nyala.wire import convert, methods
from nyala.wire.proto import nyala_pb2 as pb

ASK_MS = 3_000
BROKEN = ("FAILED", "TOMBSTONED")


@dataclass(frozen=True, slots=True)
class ServerEndpoint:
    """Uuid and address of a server."""

    uuid: str
    address: str


@dataclass(frozen=True, slots=True)
class Survivor:
    """One replica that answers.

    Attributes:
        place: uuid and address of its server.
        table: name of its table.
        state: as in reports.
        role: as in reports.
        term: its current term.
        last: op id of its last entry.
        commit: index up to which it has the entries and knows that they are committed.
        known_commit: highest commit index that a leader has sent to it; it may lack that entry.
        committed: the last committed configuration.
        active: the configuration in force.
        error: the reason for FAILED.
    """

    place: ServerEndpoint
    table: str
    state: str
    role: str
    term: int
    last: OpId
    commit: int
    known_commit: int
    committed: Configuration
    active: Configuration
    error: str

    @property
    def healthy(self) -> bool:
        """True if it runs."""
        return self.state not in BROKEN


def survivor(place: ServerEndpoint, status: pb.TabletStatus) -> Survivor:
    """Return a survivor from a server's status of its replica."""
    return Survivor(
        place,
        status.table_name,
        status.report.state,
        status.report.role,
        status.active.term,
        OpId(status.last_term, status.last_index),
        status.commit_index,
        status.known_commit,
        convert.configuration_from_proto(status.report.consensus),
        convert.configuration_from_proto(status.active),
        status.report.error,
    )


async def replicas(
    env: Env, place: ServerEndpoint, tablets: Sequence[str]
) -> dict[str, Survivor] | None:
    """Return a server's replicas of some tablets, or all; None if it does not answer.

    Args:
        env: the environment: clock, tasks, files, calls.
        place: uuid and address of the server.
        tablets: ids; empty: all.
    """
    try:
        info = await env.rpc.call(
            place.address, methods.SERVER_INFO, pb.ServerInfoRequest(), timeout_ms=ASK_MS
        )
        if place.uuid and info.uuid != place.uuid:
            return None  # another server has taken over its address
        return await list_replicas(env, ServerEndpoint(info.uuid, place.address), tablets)
    except NyalaError:
        return None


async def list_replicas(
    env: Env, place: ServerEndpoint, tablets: Sequence[str]
) -> dict[str, Survivor]:
    """Return the replicas of some tablets, or all, of a server that has answered under its uuid.

    Args:
        env: the environment: clock, tasks, files, calls.
        place: uuid and address of the server.
        tablets: ids; empty: all.

    Raises:
        NyalaError: it does not list them, for instance because it is still opening them.
    """
    return (await list_server(env, place, tablets)).replicas


@dataclass(frozen=True, slots=True)
class ServerListing:
    """Answer of a server that lists its replicas.

    Attributes:
        replicas: by tablet.
        problems: of the server as a whole, for instance of its disk, with what to do about each.
    """

    replicas: dict[str, Survivor]
    problems: tuple[str, ...] = ()


async def list_server(env: Env, place: ServerEndpoint, tablets: Sequence[str]) -> ServerListing:
    """Return the replicas of some tablets, or all, and the problems of a server.

    Args:
        env: the environment: clock, tasks, files, calls.
        place: uuid and address of the server.
        tablets: ids; empty: all.

    Raises:
        NyalaError: as `list_replicas`.
    """
    # A server that lacks one of several named replicas refuses them all.
    request = pb.ListTabletsRequest(tablet_ids=tablets if len(tablets) == 1 else ())
    try:
        answer = await env.rpc.call(place.address, methods.LIST_TABLETS, request, timeout_ms=ASK_MS)
    except NotFound:
        return ServerListing({})
    found = {t.report.tablet_id: survivor(place, t) for t in answer.tablets}
    # Each replica that runs reports the errors of its server.
    errors = dict.fromkeys(s.error for s in found.values() if s.healthy and s.error)
    return ServerListing(
        {t: one for t, one in found.items() if not tablets or t in tablets},
        tuple(errors | dict.fromkeys(answer.problems)),
    )


async def of_tablets(
    env: Env, places: Iterable[ServerEndpoint], tablets: Sequence[str]
) -> dict[str, list[Survivor]]:
    """Return the replicas of some tablets, or all, by tablet, the most up-to-date first.

    Args:
        env: the environment: clock, tasks, files, calls.
        places: the servers that are asked.
        tablets: ids; empty: all.
    """
    return by_tablet(await asyncio.gather(*(replicas(env, p, tablets) for p in places)))


def by_tablet(answers: Iterable[dict[str, Survivor] | None]) -> dict[str, list[Survivor]]:
    """Return the answers of `replicas` by tablet, the most up-to-date replica of each first."""
    found: dict[str, list[Survivor]] = {}
    for answer in answers:
        for tablet, one in (answer or {}).items():
            found.setdefault(tablet, []).append(one)
    return {t: sorted(found[t], key=_fitness, reverse=True) for t in sorted(found)}


def _fitness(one: Survivor) -> tuple[bool, OpId, int, str]:
    return (one.healthy, one.last, one.commit, one.place.uuid)


def lender(target: Survivor, found: Iterable[Survivor]) -> Survivor | None:
    """Return the witness from which a replica fetches the end of its log; None: no witness has a newer one.

    A witness never leads, and refuses its vote to an older log, so the replica fetches the missing entries
    before it leads (`raft/roles/witness.py`).

    Args:
        target: the replica that is to lead.
        found: replicas that answer.
    """
    witnesses = [
        s
        for s in found
        if s.healthy
        and s.last > target.last
        and s.place.uuid in target.active.voters
        and not s.active.may_lead(ServerUuid(s.place.uuid))
    ]
    return max(witnesses, key=lambda s: s.last, default=None)


def highest_known(healthy: Iterable[Survivor]) -> int:
    """Return the highest index of an entry of which one of some survivors, which run, knows."""
    return max(max(s.known_commit, s.last.index) for s in healthy)


def known_lost(known: int, last: OpId) -> tuple[int, int] | None:
    """Return the first and the last index of the entries that are known and lost; None: there are none.

    Args:
        known: `highest_known` of the group.
        last: op id of the last entry that is kept.
    """
    return (last.index + 1, known) if known > last.index else None


def has_majority(found: Sequence[Survivor]) -> bool:
    """Return whether the survivors are a majority of the newest active configuration among them."""
    if not found:
        return False
    config = max((s.active for s in found if s.healthy), key=lambda c: c.id, default=None)
    if config is None:
        return False
    healthy = {s.place.uuid for s in found if s.healthy}
    return sum(u in healthy for u in config.voters) >= majority(len(config.voters))
