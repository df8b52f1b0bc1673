"""Inputs and findings of a rebuild: answers of tablet servers, choices of the operator."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

from nyala.common.hybrid_time import from_micros, to_micros
from nyala.wire.proto import catalog_pb2 as cat
from nyala.wire.proto import nyala_pb2 as pb

OPENING = ("BOOTSTRAPPING",)
"""States of replicas that are being opened."""
WORKS, LEADER = "RUNNING", "LEADER"
TOMBSTONES = ("TOMBSTONED", "DELETED")


@dataclass(frozen=True, slots=True)
class ServerAnswer:
    """Answer of one tablet server.

    Attributes:
        info: its registration.
        tablets: status of its replicas, with what they know of their tables.
        revocations: certificates that it knows to be revoked.
    """

    info: pb.ServerInfoResponse
    tablets: Sequence[pb.TabletStatus]
    revocations: Sequence[cat.RevocationRecord] = ()


@dataclass(frozen=True, slots=True)
class RebuildChoices:
    """Choices of an operator, and what is not in the answers.

    Attributes:
        now_us: microseconds since the epoch.
        rng: makes ids, and chooses servers of empty tablets.
        history_s: seconds of history of a table without an option of its own.
        ahead_us: microseconds by which the servers' times may be ahead of this machine's.
        without: ids of tables and tablets that the catalog is not to have.
        names: new names of tables and journals, by their ids.
    """

    now_us: int
    rng: Random
    history_s: int
    ahead_us: int
    without: frozenset[str] = frozenset()
    names: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Findings:
    """Findings about which an operator decides before the catalog is written.

    Attributes:
        refused: contradictions that only the operator can decide: nothing is written.
        losses: what will be missing; written only by force.
        notes: nothing has to be decided.
    """

    refused: list[str] = field(default_factory=list)
    losses: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def highest_time(answers: Sequence[ServerAnswer], now_us: int) -> int:
    """Return a hybrid time that is not below any that a server has assigned or received, nor below now.

    Args:
        answers: of all servers.
        now_us: microseconds since the epoch.
    """
    return max(from_micros(now_us), *(a.info.hybrid_time for a in answers))


def moment_us(time: int) -> int:
    """Return the microseconds since the epoch of a hybrid time, rounded up."""
    return to_micros(time) + 1
