"""Configurations of a group: voters, non-voters, their attributes, and the encoding of a CONFIG entry.

A configuration lists all members; `History` tracks the active one while the log is extended and truncated
(dissertation 4.1: a configuration is active from the moment it is in the log).
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from nyala.common.errors import Corrupt, InvalidArgument
from nyala.common.ids import NO_OP, OpId, ServerUuid

UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""Exceptions of JSON decoding: malformed bytes, unexpected structure, too deep."""


@dataclass(frozen=True, slots=True)
class Member:
    """One server of a group.

    Attributes:
        uuid: the server's permanent id.
        peer_address: host:port of its peer port, as last known.
        address: host:port of its public port, as last known.
        voter: counts for majorities in elections and commits.
        promote: a non-voter that becomes a voter once it has caught up; a witness that will receive the data.
        replace: a voter that is to be replaced.
        electable: False for a witness, which logs and votes but never leads (S1.45).
    """

    uuid: ServerUuid
    peer_address: str
    address: str = ""
    voter: bool = True
    promote: bool = False
    replace: bool = False
    electable: bool = True


@dataclass(frozen=True, slots=True)
class Configuration:
    """The members of one group as of the entry at `id` (NO_OP: the initial configuration).

    `lost` are members removed by an unsafe recovery (`unsafe_recovery.py`): their messages are ignored.
    """

    members: tuple[Member, ...]
    id: OpId = NO_OP
    lost: tuple[ServerUuid, ...] = ()
    voters: tuple[ServerUuid, ...] = field(init=False, repr=False, compare=False)
    """Uuids of the voters, in configuration order."""
    promoting: tuple[ServerUuid, ...] = field(init=False, repr=False, compare=False)
    """Uuids of the non-voters that are to become voters, in configuration order."""

    uuids: frozenset[ServerUuid] = field(init=False, repr=False, compare=False)
    """Uuids of all members."""

    def __post_init__(self) -> None:
        voters = tuple(m.uuid for m in self.members if m.voter)
        promoting = tuple(m.uuid for m in self.members if m.promote and not m.voter)
        object.__setattr__(
            self, "uuids", frozenset(m.uuid for m in self.members)
        )  # on every message
        object.__setattr__(self, "voters", voters)  # read on every acknowledgement
        object.__setattr__(self, "promoting", promoting)  # read on every tick

    def get(self, uuid: ServerUuid) -> Member | None:
        """Return the member with this uuid; None: there is none."""
        for member in self.members:  # a generator would cost more than the search
            if member.uuid == uuid:
                return member
        return None

    def may_lead(self, uuid: ServerUuid) -> bool:
        """Return whether a server may become leader: it is a voter and not a witness."""
        member = self.get(uuid)
        return member is not None and member.voter and member.electable


def initial(members: Iterable[Member], lost: Iterable[ServerUuid] = ()) -> Configuration:
    """Return the initial configuration of a group, without an id; members are sorted by uuid.

    Raises:
        InvalidArgument: no voter, or one uuid twice.
    """
    ordered = tuple(sorted(members, key=lambda m: m.uuid))
    if not any(m.voter for m in ordered):
        raise InvalidArgument("a configuration needs at least one voter")
    if len({m.uuid for m in ordered}) != len(ordered):
        raise InvalidArgument("a configuration names one server twice")
    return Configuration(ordered, lost=tuple(sorted(set(lost) - {m.uuid for m in ordered})))


@dataclass(frozen=True, slots=True)
class _WithLost:
    members: tuple[Member, ...]
    lost: tuple[ServerUuid, ...]


def encode(config: Configuration) -> bytes:
    """Return the payload of a CONFIG entry: JSON, so that members may gain fields."""
    if config.lost:
        return msgspec.json.encode(_WithLost(config.members, config.lost))
    return msgspec.json.encode(config.members)


def decode(payload: bytes, at: OpId) -> Configuration:
    """Return the configuration of a CONFIG entry at `at`.

    Raises:
        Corrupt: the payload is not a configuration.
    """
    try:
        found = msgspec.json.decode(payload, type=tuple[Member, ...] | _WithLost)
    except UNREADABLE as err:
        raise Corrupt(f"the configuration entry at {at} cannot be read: {err}") from err
    if isinstance(found, _WithLost):
        return Configuration(found.members, at, found.lost)
    return Configuration(found, at)


class History:
    """The last committed configuration and the later ones in the log; the newest is active.

    Args:
        committed: the configuration known to be committed.
    """

    __slots__ = ("_pending", "active", "committed")

    def __init__(self, committed: Configuration) -> None:
        self.committed = self.active = committed
        self._pending: list[Configuration] = []  # oldest first

    @property
    def pending(self) -> bool:
        """True if the active configuration is not known to be committed."""
        return bool(self._pending)

    def adopt(self, config: Configuration) -> None:
        """Make the configuration of an appended entry the active one."""
        assert config.id.index > self.active.id.index, f"{config.id} after {self.active.id}"
        self._pending.append(config)
        self.active = config

    def truncate(self, first: int) -> bool:
        """Roll back the configurations of entries from `first` on; return whether the active one changed."""
        before = self.active
        while self._pending and self._pending[-1].id.index >= first:
            self._pending.pop()
        self.active = self._pending[-1] if self._pending else self.committed
        return self.active is not before

    def commit(self, index: int) -> bool:
        """Record that entries up to `index` are committed; return whether `committed` changed."""
        before = self.committed
        while self._pending and self._pending[0].id.index <= index:
            self.committed = self._pending.pop(0)
        return self.committed is not before
