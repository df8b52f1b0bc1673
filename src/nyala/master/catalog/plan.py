"""Plan of an operation: the rows that it writes to the catalog, and the orders that follow.

A planner (create_table, alter_table, tablet_report) is a function from request or report and catalog to a
`CatalogPlan`. It cannot write, send or wait, so it cannot break the order of steps in `operation.py`.
"""

from dataclasses import dataclass

from nyala.common.ids import TableId, TabletId
from nyala.master.catalog.actions import Action
from nyala.wire.proto import catalog_pb2 as cat
from nyala.wire.proto import nyala_pb2 as pb


@dataclass(frozen=True, slots=True)
class AccessChanges:
    """Changes of tokens, accounts of users, revocations and grants in a plan.

    Attributes:
        tokens: new records of tokens.
        ended: tokens whose rows are removed, by id.
        revocations: new revocations.
        expired: revocations whose rows are removed, by id.
        grants: new records of grants.
        ungranted: grants whose rows are removed, by id.
        rules: the next version of the grants, if they change.
        users: new records of accounts.
        removed_users: accounts whose rows are removed, by name.
        authorities: the new record of the certificate authorities, when it changes.
    """

    tokens: tuple[cat.JoinTokenRecord, ...] = ()
    ended: tuple[str, ...] = ()
    revocations: tuple[cat.RevocationRecord, ...] = ()
    expired: tuple[str, ...] = ()
    grants: tuple[cat.GrantRecord, ...] = ()
    ungranted: tuple[str, ...] = ()
    rules: cat.AccessRulesRecord | None = None
    users: tuple[cat.UserRecord, ...] = ()
    removed_users: tuple[str, ...] = ()
    authorities: cat.AuthoritiesRecord | None = None


@dataclass(frozen=True, slots=True)
class CatalogPlan:
    """Writes and orders of one catalog operation.

    Attributes:
        tablets: new records of tablets.
        tables: new records of tables.
        cluster: the new record of the cluster, when it changes.
        servers: new entries of the server list, each with the next version.
        decisions: new decisions of transactions.
        removed: decisions whose rows are removed, by transaction.
        marks: new marks of the decisions.
        keys: new records of keys of transactions.
        access: changes of join tokens, accounts and revocations.
        removed_keys: keys whose rows are removed, by name.
        actions: orders for tablet servers, sent after the commit point only.
        answer: the id of the table that the operation is about, for the client.
    """

    tablets: tuple[cat.TabletRecord, ...] = ()
    tables: tuple[cat.TableRecord, ...] = ()
    cluster: cat.ClusterRecord | None = None
    servers: tuple[pb.ListedServer, ...] = ()
    actions: tuple[Action, ...] = ()
    answer: TableId | None = None
    decisions: tuple[cat.DecisionRecord, ...] = ()
    removed: tuple[bytes, ...] = ()
    marks: cat.DecisionMarks | None = None
    keys: tuple[cat.KeyRecord, ...] = ()
    removed_keys: tuple[str, ...] = ()
    access: AccessChanges | None = None

    @property
    def writes(self) -> bool:
        """True if anything is replicated."""
        definitions = self.tables or self.tablets or self.servers or self.cluster is not None
        ended = self.removed or self.removed_keys or self.marks is not None
        ended = ended or self.access is not None
        return bool(definitions or self.decisions or self.keys or ended)


@dataclass(frozen=True, slots=True)
class Scope:
    """Locks of an operation: names, then tables, then tablets, each in order of its id (S0.56)."""

    names: tuple[str, ...] = ()
    tables: tuple[TableId, ...] = ()
    tablets: tuple[TabletId, ...] = ()

    def ordered(self) -> list[tuple[int, str]]:
        """Return the locks in the one order in which every operation takes them."""
        ranked = enumerate((self.names, self.tables, self.tablets))
        return sorted({(rank, key) for rank, keys in ranked for key in keys})
