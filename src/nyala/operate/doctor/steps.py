"""Steps of a recovery plan: what is wrong, the command, the data at risk."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from nyala.common.ids import OpId
from nyala.operate.survivors import ServerEndpoint, Survivor, highest_known, known_lost, lender
from nyala.raft.quorum import majority


@dataclass(frozen=True, slots=True)
class RecoverTablet:
    """Unsafe change of configuration: the target leads, with the members that are kept."""

    tablet: str
    target: ServerEndpoint
    keep: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ReplaceLostTablet:
    """An empty tablet takes the key range of one whose replicas are all lost."""

    tablet: str


@dataclass(frozen=True, slots=True)
class DeleteOrphan:
    """Deletion of a replica whose tablet has no record in the catalog."""

    server: str
    tablet: str


@dataclass(frozen=True, slots=True)
class RemoveMaster:
    """Removal of a master from the masters' configuration."""

    name: str


@dataclass(frozen=True, slots=True)
class AddMaster:
    """Addition of a running new master."""

    address: str


Action = RecoverTablet | ReplaceLostTablet | DeleteOrphan | RemoveMaster | AddMaster


@dataclass(frozen=True, slots=True)
class DataAtRisk:
    """Entries that a step may lose.

    Attributes:
        survivors: replicas that answer, the most up-to-date first.
        last: op id of the last entry that is kept; None: nothing is kept.
        known_lost: first and last index of entries that are known and not kept; None: none.
        bounded: no other entry that was acknowledged can be lost.
        lent: the witness from which the new leader fetches the last of these entries; None: it has them.
    """

    survivors: tuple[Survivor, ...] = ()
    last: OpId | None = None
    known_lost: tuple[int, int] | None = None
    bounded: bool = False
    lent: Survivor | None = None

    @property
    def lines(self) -> list[str]:
        """The same as text."""
        lines = [
            f"{s.place.uuid} at {s.place.address} is {s.state}: log up to {s.last}, committed up to index "
            f"{s.commit}, told of commit index {s.known_commit}"
            for s in self.survivors
        ]
        if self.last is None:
            return [*lines, "every row of it is lost, acknowledged or not"]
        lines.append(
            f"kept: every entry up to {self.last}; those after the commit index become committed"
        )
        if self.lent is not None:
            lines.append(
                f"the new leader fetches the last of them from the witness {self.lent.place.uuid} at "
                f"{self.lent.place.address}, which has to keep running until the step is performed"
            )
        if self.known_lost is not None:
            lines.append(f"lost for certain: entries {self.known_lost[0]} to {self.known_lost[1]}")
        lines.append(
            "lost at most: no acknowledged entry, since the lost servers were no majority"
            if self.bounded
            else f"lost at most: all entries after {self.last}, without an upper limit: the lost servers "
            "were a majority, and may have acknowledged entries without the survivors"
        )
        return lines

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {
            "survivors": [
                {"server": s.place.uuid, "address": s.place.address, "state": s.state,
                 "last": str(s.last), "committed": s.commit, "known_commit": s.known_commit}
                for s in self.survivors
            ],
            "last_kept": None if self.last is None else str(self.last),
            "known_lost": None if self.known_lost is None else list(self.known_lost),
            "acknowledged_entries_may_be_lost": not self.bounded,
            "fetched_from": None if self.lent is None else self.lent.place.uuid,
        }  # fmt: skip


def risk_of(target: Survivor, found: Sequence[Survivor]) -> DataAtRisk:
    """Return the entries that a group loses if it continues with a survivor.

    Every acknowledged entry is on a majority of the voters. If the servers that are lost are no majority,
    then a survivor has it, and so has the one with the last op id. If it is a witness, the target fetches it.

    Args:
        target: the most up-to-date survivor, which is to lead.
        found: replicas that answer.
    """
    healthy = {s.place.uuid: s for s in found if s.healthy}
    lent = lender(target, found)
    last = target.last if lent is None else lent.last
    bounded = last == max(s.last for s in healthy.values()) and all(
        sum(u not in healthy for u in config.voters) < majority(len(config.voters))
        for config in (target.committed, target.active)
    )
    lost = known_lost(highest_known(healthy.values()), last)
    return DataAtRisk(tuple(found), last, lost, bounded, lent)


@dataclass(frozen=True, slots=True)
class RecoveryStep:
    """One step of the plan.

    Attributes:
        name: it names the same step in every plan that has it.
        finding: the problem.
        command: the command that performs the step, or what the operator does.
        action: performs it; None: only the operator can, on a machine of a server.
        risk: entries that it may lose; None: it loses nothing.
        undeclared: servers that the operator has to declare lost first, by `--lost`.
        running: servers that may have the data, and run: they answer, or send heartbeats.
        discards: it discards rows without any check by the cluster: performed only if it is named.
    """

    name: str
    finding: str
    command: str
    action: Action | None = None
    risk: DataAtRisk | None = None
    undeclared: tuple[str, ...] = field(default=())
    running: tuple[str, ...] = field(default=())
    discards: bool = False

    @property
    def ready(self) -> bool:
        """True if `nyala doctor` can perform it now."""
        return self.action is not None and not self.undeclared and not self.running

    def as_dict(self, number: int) -> dict[str, Any]:
        """Return it for JSON, with its number in the plan."""
        return {
            "number": number, "name": self.name, "finding": self.finding, "command": self.command,
            "performed_by": "operator" if self.action is None else "doctor",
            "declare_lost": list(self.undeclared), "still_running": list(self.running),
            "discards_rows": self.discards,
            "data_at_risk": None if self.risk is None else self.risk.as_dict(),
        }  # fmt: skip
