"""One member of the model: the real core, its disk, and the writes that wait for it, as a value to copy.

A member's inputs are plain functions; each obeys the host's rules (raft/ready.py) and then `settle`s, which
drains the core's output. `normalise` removes state without influence on later steps (the reasons
are beside each line), so that states which differ only there are equal; `freeze` returns their key.
"""

import contextlib
import dataclasses
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from types import FunctionType, MethodType
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from nyala.common.errors import InvalidArgument, NotLeader, Unavailable
from nyala.common.ids import OpId, ServerUuid
from nyala.raft.membership import Configuration
from nyala.raft.messages import AnyMessage, DurablePoint, Entry, HardState
from nyala.raft.node import RaftNode
from nyala.raft.options import RaftOptions
from nyala.raft.progress import STALL_HEARTBEATS, Flow
from nyala.raft.ready import Outgoing
from nyala.raft.reconfiguration.changes import Change
from nyala.raft.roles import election
from nyala.raft.state import RaftState
from tests.sim.checkers import raft_invariants

ONE_EACH = RaftOptions(max_append_bytes=1)
"""Options with one entry in each message, so that each may be lost individually."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Writes of one Ready: durable together, at a sync."""

    persist: HardState | None
    append: tuple[Entry, ...]
    point: DurablePoint


@dataclass(slots=True, eq=False)
class Member:
    """A core with its host."""

    node: RaftNode
    config: Configuration  # consensus metadata
    hard: HardState = HardState()  # noqa: RUF009  (a frozen value)
    log: tuple[Entry, ...] = ()
    pending: tuple[Batch, ...] = ()
    waiting: tuple[Outgoing, ...] = ()
    durable: DurablePoint = DurablePoint()  # noqa: RUF009  (a frozen value)
    slow: bool = False  # its disk syncs only by an action


def boot(uuid: str, config: Configuration, hard: HardState, log: tuple[Entry, ...]) -> RaftNode:
    """Start a core from its disk."""
    return RaftNode(
        ServerUuid(uuid), config, hard, log, options=ONE_EACH, random=lambda n: 0
    )  # fmt: skip


# ---- copies and keys ---------------------------------------------------------------------------------

_SHARED: dict[type, bool] = {}
_NAMES: dict[type, tuple[str, ...]] = {}


def _shared(kind: type) -> bool:
    """Return whether values of a type never change, so that copies share them."""
    known = _SHARED.get(kind)
    if known is None:
        if issubclass(kind, Struct):
            frozen = kind.__struct_config__.frozen
        else:
            frozen = is_dataclass(kind) and kind.__dataclass_params__.frozen  # type: ignore[attr-defined]
        simple = (int, str, bytes, float, Enum, type(None), FunctionType, MethodType)
        _SHARED[kind] = known = frozen or issubclass(kind, simple)
    return known


def _names(kind: type) -> tuple[str, ...]:
    known = _NAMES.get(kind)
    if known is None:
        slots = getattr(kind, "__slots__", ())
        known = tuple(f.name for f in fields(kind)) if is_dataclass(kind) else tuple(slots)
        _NAMES[kind] = known
    return known


def clone(value: Any) -> Any:
    """Copy mutable state, share immutable state."""
    kind = type(value)
    if kind is tuple or _shared(kind):
        return value  # tuples here hold frozen values
    if kind is list or kind is deque:
        return kind(map(clone, value))
    if kind is dict:
        return {k: clone(v) for k, v in value.items()}
    if kind is set:
        return set(value)
    new = object.__new__(kind)
    if kind is RaftNode:
        new.core = clone(value.core)
        return new
    for name in _names(kind):
        setattr(new, name, clone(getattr(value, name)))
    return new


def freeze(value: Any) -> Any:
    """Return a hashable key of everything in a value; functions and options are the same for all."""
    kind = type(value)
    if kind in (tuple, list, deque):
        return tuple(map(freeze, value))
    if kind is dict:
        return tuple(sorted((k, freeze(v)) for k, v in value.items()))
    if kind is set:
        return tuple(sorted(value))
    if kind is FunctionType or kind is RaftOptions:
        return None
    if _shared(kind):
        return value
    if kind is RaftNode:
        return freeze(value.core)
    return tuple(freeze(getattr(value, name)) for name in _names(kind))


def plain(message: AnyMessage) -> AnyMessage:
    """Remove the fields of a message that no safety rule reads: clocks and log collection."""
    changes: dict[str, Any] = {"hlc": 0} if message.hlc else {}
    if getattr(message, "needed", 0):
        changes["needed"] = 0
    return replace(message, **changes) if changes else message


def normalise(member: Member) -> None:
    """Remove state without further influence, so that states with equal behaviour have equal keys."""
    core = member.node.core
    core.ticks = core.elapsed = 0  # time is an action, not a number
    core.timeout = core.options.election_ticks
    core.ticks_since_leader = (
        core.options.election_ticks
    )  # a receiver of a pre-vote has no recent leader
    core.hlc = core.retain_index = 0  # timestamps equal indexes; collection is not modelled
    if core.leadership is None:
        core.dirty = False
    else:
        core.verified = core.log.committed  # a follower's own match; set again when it steps down
        core.leadership.heartbeat_elapsed = core.leadership.idle = 0
        core.leadership.idle_inputs = ()
        leaving = core.leadership.removed.values()
        for one in leaving:
            one.heartbeats = 0
        for peer in (*core.leadership.peers.values(), *(one.peer for one in leaving)):
            peer.last_reply_at = peer.stalled_heartbeats = peer.last_received = peer.hlc = 0
            peer.inflight.clear()  # the window is never full in the model
            peer.inflight_bytes = 0
    _renumber(member)


def _renumber(member: Member) -> None:
    """Count versions from the durable one, since only their order matters."""
    core, base = member.node.core, member.node.core.durable_version
    core.durable_version = 0
    core.version -= base
    core.version_out -= base
    core.truncated_version = max(0, core.truncated_version - base)
    waits = core.state is RaftState.CANDIDATE
    core.self_vote_version = max(0, core.self_vote_version - base) if waits else 0
    member.durable = DurablePoint(0, OpId(0, core.log.stable))  # only its index is compared
    member.pending = tuple(
        dataclasses.replace(b, point=_earlier(b.point, base)) for b in member.pending
    )
    member.waiting = tuple(replace(o, after=_earlier(o.after, base)) for o in member.waiting)


def _earlier(point: DurablePoint, by: int) -> DurablePoint:
    return DurablePoint(max(0, point.hard_state_version - by), point.last)


# ---- inputs ------------------------------------------------------------------------------------------


def settle(member: Member) -> list[AnyMessage]:
    """Process the core's output; return the messages sent."""
    node = member.node
    sent: list[AnyMessage] = []
    while not (ready := node.ready()).empty:
        member.waiting += ready.send
        if ready.persist is not None or ready.append:
            member.pending += (Batch(ready.persist, ready.append, ready.point),)
        for request in ready.read:
            held = [e for e in member.log if e.id.index >= request.first_index]
            node.entries_read(request.peer, held[:1])
        if ready.apply:
            node.applied(ready.apply[-1].id.index)
        sent += _release(member)
        while member.pending and not member.slow:
            sent += _sync_one(member)
    raft_invariants.check(node)
    normalise(member)
    return [plain(m) for m in sent]


def _release(member: Member) -> Iterable[AnyMessage]:
    free = [o.message for o in member.waiting if member.durable.covers(o.after)]
    member.waiting = tuple(o for o in member.waiting if not member.durable.covers(o.after))
    return free


def _sync_one(member: Member) -> Iterable[AnyMessage]:
    batch, *rest = member.pending
    member.pending = tuple(rest)
    if batch.persist is not None:
        member.hard = batch.persist
    for entry in batch.append:
        member.log = (*(e for e in member.log if e.id.index < entry.id.index), entry)
    member.durable = batch.point
    member.node.durable(batch.point)
    return _release(member)


def take(member: Member, message: AnyMessage) -> list[AnyMessage]:
    """Deliver a message."""
    member.node.step(message, 0)
    return settle(member)


def sync(member: Member) -> list[AnyMessage]:
    """Let the oldest batch become durable."""
    sent = [plain(m) for m in _sync_one(member)]
    return sent + settle(member)


def time_out(member: Member) -> list[AnyMessage]:
    """Let the election timeout pass."""
    core = member.node.core
    core.elapsed = core.timeout
    member.node.tick(0)
    return settle(member)


def stand(member: Member) -> list[AnyMessage]:
    """Let the election timeout pass, and omit the pre-vote."""
    member.node.core.become_pre_candidate()
    election.campaign(member.node.core, pre=False)
    return settle(member)


def transfer(member: Member, to: ServerUuid) -> list[AnyMessage]:
    """Transfer leadership."""
    member.node.transfer(to)
    return settle(member)


def change(member: Member, one: Change) -> list[AnyMessage]:
    """Change the membership; a refusal changes nothing."""
    with contextlib.suppress(Unavailable, InvalidArgument, NotLeader):
        member.node.change_config([one], member.node.last_stamp + 1)
    return settle(member)


def heartbeat(member: Member, stalled: bool = False) -> list[AnyMessage]:
    """Make a leader's heartbeat due; `stalled`: earlier messages count as lost."""
    core = member.node.core
    lead = core.leadership
    assert lead is not None
    for peer in lead.peers.values():
        peer.last_received = peer.received
        if stalled and peer.flow is Flow.STREAM:
            peer.stalled_heartbeats = STALL_HEARTBEATS
    lead.heartbeat_elapsed = core.options.heartbeat_ticks
    member.node.tick(0)
    return settle(member)


def give_up(member: Member) -> list[AnyMessage]:
    """Let a leader detect that no majority has answered (6.2)."""
    lead = member.node.core.leadership
    assert lead is not None
    for peer in lead.peers.values():
        peer.last_reply_at = -1 << 20
    return heartbeat(member)


def propose(member: Member, payload: bytes) -> list[AnyMessage]:
    """Take one operation; its stamp is its index."""
    member.node.propose(payload, member.node.last_stamp + 1)
    return settle(member)


def crash(member: Member) -> list[AnyMessage]:
    """Lose everything that is not durable, and start again."""
    member.pending = member.waiting = ()
    member.durable = DurablePoint()
    uuid = member.node.core.uuid
    member.node = boot(uuid, member.config, member.hard, member.log)
    return settle(member)


Action = Callable[[Member], list[AnyMessage]]
