"""What a read wants, and the scan tokens that say so to servers."""

from dataclasses import dataclass

from nyala.client.cluster.tablet_cache import OpenTable, TabletPlace
from nyala.common.predicate import Predicate
from nyala.wire import convert
from nyala.wire.proto import nyala_pb2 as pb


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSpec:
    """What to read, with names resolved.

    Attributes:
        columns: names, in the order wanted; None: all.
        where: rows to keep.
        latest: read each tablet at its leader's own time instead of one snapshot.
        max_age_ms: read each tablet at any replica whose rows are not older; None: at its leader.
        at: snapshot; 0: the largest time among the servers as the scan begins.
        limit: most rows; 0: all.
        ordered: by primary key.
        count_only: only the number of rows.
        changes: read the change feed (since, at] instead.
        since: lower end of a change feed.
        net: one row per key in a change feed, else each version.
    """

    columns: tuple[str, ...] | None = None
    where: Predicate | None = None
    latest: bool = False
    max_age_ms: int | None = None
    at: int = 0
    limit: int = 0
    ordered: bool = False
    count_only: bool = False
    changes: bool = False
    since: int = 0
    net: bool = True


def make_token(table: OpenTable, tablet: TabletPlace, spec: ReadSpec, at: int) -> pb.ScanToken:
    """Return the token that reads one tablet; the reader adds its own sizes, masters and deadline."""
    token = pb.ScanToken(
        table_id=table.id,
        table_name=table.name,
        tablet_id=tablet.id,
        schema_version=table.schema.version,
        ranges_version=table.ranges_version,
        mode=pb.LATEST if spec.latest and not at else pb.SNAPSHOT,
        at=at,
        limit=spec.limit,
        ordered=spec.ordered,
        count_only=spec.count_only,
        changes=spec.changes,
        since=spec.since,
        net=spec.net,
        replicas=tablet.addresses(),
    )
    if spec.max_age_ms is not None:
        token.mode, token.max_age_ms = pb.STALE, spec.max_age_ms
    if not spec.count_only:  # by id and under these names, whatever the table is altered to
        names = table.schema.by_name if spec.columns is None else spec.columns
        token.column_ids.extend(table.schema.column(n).id for n in names)
        token.column_names.extend(names)
    if spec.where is not None:
        token.where.CopyFrom(convert.predicate_to_proto(spec.where))
    return token


def make_probe(table: OpenTable, tablet: TabletPlace, at: int) -> pb.ScanToken:
    """Return a token that reads no row, and is refused if the table has newer ranges at its time; 0: now."""
    token = make_token(table, tablet, ReadSpec(count_only=True, latest=not at), at)
    token.key_upper = b"\0"
    return token
