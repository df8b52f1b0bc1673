"""Facts about a cluster, and statements of its operator: what a plan of recovery is made of. Values only."""

from dataclasses import dataclass

from nyala.operate.survivors import ServerEndpoint, Survivor


@dataclass(frozen=True, slots=True)
class MasterFacts:
    """One master.

    Attributes:
        place: uuid and address; the uuid is empty if it is not known.
        answers: it answers, with this uuid.
        error: the error of its FAILED catalog replica; empty: none.
        catalog: its replica of the catalog; None: it does not answer, does not list it, or has none.
        problem: why it does not answer, or does not list its replica; empty: neither.
        other: uuid of another master that answers at its address; empty: none.
        reports: problems that it reports of itself, with what to do about each.
        untrusted: why its certificate is not accepted, so that only this is known: it runs; empty: it is.
    """

    place: ServerEndpoint
    answers: bool
    error: str = ""
    catalog: Survivor | None = None
    problem: str = ""
    other: str = ""
    reports: tuple[str, ...] = ()
    untrusted: str = ""


@dataclass(frozen=True, slots=True)
class TServerFacts:
    """One tablet server.

    Attributes:
        place: uuid and address.
        answers: it has listed its replicas, under this uuid.
        starting: it answers, and does not list its replicas, or not yet.
        alive: the leader master has its heartbeats.
        problem: why it does not answer, or does not list its replicas; empty: neither.
        other: uuid of another server that answers at its address; empty: none.
        masters: addresses of the masters to which it reports.
        failed: replicas of it that are FAILED: tablet and error.
        reports: as of a master.
        retired: see `ksck.is_retired`.
        untrusted: as of a master.
    """

    place: ServerEndpoint
    answers: bool
    starting: bool = False
    alive: bool = True
    problem: str = ""
    other: str = ""
    masters: tuple[str, ...] = ()
    failed: tuple[tuple[str, str], ...] = ()
    reports: tuple[str, ...] = ()
    retired: bool = False
    untrusted: str = ""


@dataclass(frozen=True, slots=True)
class TabletFacts:
    """One tablet of the catalog.

    Attributes:
        tablet: its id.
        table: name of its table or journal.
        voters: voters of its configuration, as the catalog has it.
        found: replicas that answer, the most up-to-date first.
        kind: "table" or "journal".
    """

    tablet: str
    table: str
    voters: tuple[ServerEndpoint, ...]
    found: tuple[Survivor, ...]
    kind: str = "table"

    @property
    def title(self) -> str:
        """Name and id as text."""
        return f"{self.kind} {self.table}, tablet {self.tablet}"


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """The state of a cluster at one moment.

    Attributes:
        leader: address of the leader master; empty: none leads, and only `masters` is filled.
        masters: the masters of the configuration.
        tservers: the tablet servers that the leader master knows.
        tablets: tablets of all tables and journals.
        orphans: replicas whose tablet has no record in the catalog: its id, and the replica.
        wanted: the largest number of replicas that a table wants.
    """

    leader: str
    masters: tuple[MasterFacts, ...] = ()
    tservers: tuple[TServerFacts, ...] = ()
    tablets: tuple[TabletFacts, ...] = ()
    orphans: tuple[tuple[str, Survivor], ...] = ()
    wanted: int = 0


@dataclass(frozen=True, slots=True)
class Declared:
    """Statements of the operator.

    Attributes:
        lost: uuids or addresses of servers whose data are lost for good.
        new_masters: addresses of new masters, which run.
    """

    lost: frozenset[str] = frozenset()
    new_masters: tuple[str, ...] = ()

    def is_lost(self, place: ServerEndpoint, other: str = "") -> bool:
        """Return whether a server was declared lost.

        Args:
            place: uuid and address of the server; one of them is empty if it is not known.
            other: uuid of another server that answers at its address, which then names neither of the two;
                empty: none.
        """
        by_address = place.address and not other and place.address in self.lost
        return bool(by_address or (place.uuid and place.uuid in self.lost))
