"""Records of the rows of the sys catalog."""

from google.protobuf.message import DecodeError

from nyala.common.errors import BadVersion, Corrupt, InvalidArgument
from nyala.master.catalog.records.rows import (
    KIND_AUTHORITIES,
    KIND_CLUSTER,
    KIND_DECISION,
    KIND_GRANT,
    KIND_MARKS,
    KIND_REVOCATION,
    KIND_RULES,
    KIND_SERVER,
    KIND_TABLE,
    KIND_TABLET,
    KIND_TOKEN,
    KIND_USER,
    CatalogRow,
)
from nyala.master.catalog.records.tables import CatalogTable, CatalogTablet
from nyala.wire.proto import catalog_pb2 as cat
from nyala.wire.proto import nyala_pb2 as pb

Item = (
    CatalogTable
    | CatalogTablet
    | cat.ClusterRecord
    | pb.ListedServer
    | cat.DecisionRecord
    | cat.DecisionMarks
    | cat.JoinTokenRecord
    | cat.RevocationRecord
    | cat.GrantRecord
    | cat.AccessRulesRecord
    | cat.UserRecord
    | cat.AuthoritiesRecord
)
_RECORDS: dict[
    str,
    type[cat.TableRecord]
    | type[cat.TabletRecord]
    | type[cat.ClusterRecord]
    | type[pb.ListedServer]
    | type[cat.DecisionRecord]
    | type[cat.DecisionMarks]
    | type[cat.JoinTokenRecord]
    | type[cat.RevocationRecord]
    | type[cat.GrantRecord]
    | type[cat.AccessRulesRecord]
    | type[cat.UserRecord]
    | type[cat.AuthoritiesRecord],
] = {
    KIND_TABLE: cat.TableRecord,
    KIND_TABLET: cat.TabletRecord,
    KIND_CLUSTER: cat.ClusterRecord,
    KIND_SERVER: pb.ListedServer,
    KIND_DECISION: cat.DecisionRecord,
    KIND_MARKS: cat.DecisionMarks,
    KIND_TOKEN: cat.JoinTokenRecord,
    KIND_REVOCATION: cat.RevocationRecord,
    KIND_GRANT: cat.GrantRecord,
    KIND_RULES: cat.AccessRulesRecord,
    KIND_USER: cat.UserRecord,
    KIND_AUTHORITIES: cat.AuthoritiesRecord,
}


def parse_key(row: CatalogRow) -> cat.KeyRecord:
    """Return the record of a key's row.

    Raises:
        Corrupt: the body is not such a record, or belongs to another key.
    """
    try:
        record = cat.KeyRecord.FromString(row.body)
    except DecodeError as err:
        raise Corrupt(f"the catalog row {row.kind}/{row.id} cannot be read: {err}") from err
    if record.key.name != row.id:
        raise Corrupt(
            f"the catalog row {row.kind}/{row.id} holds the record of {record.key.name!r}"
        )
    return record


def parse(row: CatalogRow) -> Item | None:
    """Return what a row holds; None for a key, or a kind of a newer release.

    Raises:
        Corrupt: the body is not a record of its kind, or belongs to another id.
        BadVersion: a state, or a kind of tables, of a newer release.
    """
    if row.kind not in _RECORDS:
        return None
    try:
        record = _RECORDS[row.kind].FromString(row.body)
    except DecodeError as err:
        raise Corrupt(f"the catalog row {row.kind}/{row.id} cannot be read: {err}") from err
    if isinstance(
        record,
        cat.ClusterRecord | cat.DecisionMarks | cat.AccessRulesRecord | cat.AuthoritiesRecord,
    ):
        return record
    if (found := _id_of(record)) != row.id:
        raise Corrupt(f"the catalog row {row.kind}/{row.id} holds the record of {found!r}")
    if not isinstance(record, cat.TableRecord | cat.TabletRecord):
        return record
    try:
        item = (
            CatalogTable(record) if isinstance(record, cat.TableRecord) else CatalogTablet(record)
        )
        assert item.state
        assert isinstance(item, CatalogTablet) or item.kind
    except InvalidArgument as err:
        raise BadVersion(
            f"the catalog row {row.kind}/{row.id} is of a newer release: {err}"
        ) from err
    except ValueError as err:
        raise BadVersion(
            f"the catalog row {row.kind}/{row.id} has an unknown state: {err}"
        ) from err
    return item


def _id_of(
    record: cat.TableRecord
    | cat.TabletRecord
    | pb.ListedServer
    | cat.DecisionRecord
    | cat.JoinTokenRecord
    | cat.RevocationRecord
    | cat.GrantRecord
    | cat.UserRecord,
) -> str:
    """Return the id that the row of a record has."""
    if isinstance(record, cat.DecisionRecord):
        return record.transaction.hex()
    return record.uuid if isinstance(record, pb.ListedServer) else record.id
