"""Rows of the sys catalog: their kinds, and the row of each record."""

from dataclasses import dataclass

from google.protobuf.message import Message

from nyala.wire.proto import catalog_pb2 as cat
from nyala.wire.proto import nyala_pb2 as pb

KIND_TABLE, KIND_TABLET, KIND_CLUSTER, KIND_SERVER = "table", "tablet", "cluster", "server"
KIND_DECISION, KIND_MARKS = "decision", "decision_marks"
KIND_TOKEN, KIND_REVOCATION, KIND_GRANT = "join_token", "revocation", "grant"
KIND_RULES, RULES_ROW = "access_rules", "rules"
KIND_USER = "account"
KIND_AUTHORITIES = AUTHORITIES_ROW = "authorities"
KIND_KEY = "txn_key"
"""Kind of the keys of transactions, which are looked up and not loaded: it sorts after every other kind."""
CLUSTER_ROW, MARKS_ROW = "cluster", "marks"


@dataclass(frozen=True, slots=True)
class CatalogRow:
    """One row of the sys catalog.

    Attributes:
        kind: kind of its record.
        id: unique for the kind.
        body: the record.
        removed: the row is removed.
    """

    kind: str
    id: str
    body: bytes
    removed: bool = False


def _row(kind: str, id: str, record: Message) -> CatalogRow:
    return CatalogRow(kind, id, record.SerializeToString(deterministic=True))


def table_row(record: cat.TableRecord) -> CatalogRow:
    """Return the row of a table."""
    return _row(KIND_TABLE, record.id, record)


def tablet_row(record: cat.TabletRecord) -> CatalogRow:
    """Return the row of a tablet."""
    return _row(KIND_TABLET, record.id, record)


def cluster_row(record: cat.ClusterRecord) -> CatalogRow:
    """Return the row of the cluster."""
    return _row(KIND_CLUSTER, CLUSTER_ROW, record)


def server_row(record: pb.ListedServer) -> CatalogRow:
    """Return the row of a tablet server."""
    return _row(KIND_SERVER, record.uuid, record)


def decision_row(record: cat.DecisionRecord) -> CatalogRow:
    """Return the row of a decision."""
    return _row(KIND_DECISION, record.transaction.hex(), record)


def removed_decision(transaction: bytes) -> CatalogRow:
    """Return the row that removes a decision."""
    return CatalogRow(KIND_DECISION, transaction.hex(), b"", removed=True)


def marks_row(record: cat.DecisionMarks) -> CatalogRow:
    """Return the row of the marks of all decisions."""
    return _row(KIND_MARKS, MARKS_ROW, record)


def token_row(record: cat.JoinTokenRecord) -> CatalogRow:
    """Return the row of a join token."""
    return _row(KIND_TOKEN, record.id, record)


def revocation_row(record: cat.RevocationRecord) -> CatalogRow:
    """Return the row of a revocation."""
    return _row(KIND_REVOCATION, record.id, record)


def grant_row(record: cat.GrantRecord) -> CatalogRow:
    """Return the row of a grant."""
    return _row(KIND_GRANT, record.id, record)


def rules_row(record: cat.AccessRulesRecord) -> CatalogRow:
    """Return the row of the version of the grants."""
    return _row(KIND_RULES, RULES_ROW, record)


def user_row(record: cat.UserRecord) -> CatalogRow:
    """Return the row of an account of a user."""
    return _row(KIND_USER, record.id, record)


def authorities_row(record: cat.AuthoritiesRecord) -> CatalogRow:
    """Return the row of the certificate authorities."""
    return _row(KIND_AUTHORITIES, AUTHORITIES_ROW, record)


def key_row(record: cat.KeyRecord) -> CatalogRow:
    """Return the row of a key."""
    return _row(KIND_KEY, record.key.name, record)


def removed_key(name: str) -> CatalogRow:
    """Return the row that removes a key."""
    return CatalogRow(KIND_KEY, name, b"", removed=True)
