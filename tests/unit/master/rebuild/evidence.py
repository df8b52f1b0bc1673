"""Answers of tablet servers for the tests of rebuilt catalogs."""

from dataclasses import replace
from random import Random

import pyarrow as pa

from nyala.common.alteration import RenameColumn, alter
from nyala.common.hybrid_time import from_micros
from nyala.common.ids import NO_OP, OpId, ServerUuid
from nyala.common.partitioning.partition import (
    HashLevel,
    KeyRange,
    PartitionSchema,
    TabletPartition,
)
from nyala.common.schema import from_arrow
from nyala.master.rebuild.evidence import RebuildChoices, ServerAnswer
from nyala.master.rebuild.plan import RebuildPlan, plan
from nyala.raft import membership
from nyala.raft.membership import Configuration, Member
from nyala.wire import convert
from nyala.wire.proto import nyala_pb2 as pb

NOW_US = 1_700_000_000_000_000
NOW = from_micros(NOW_US)
SCHEMA = from_arrow(pa.schema([("k", pa.int64()), ("v", pa.int64())]), ["k"])
RENAMED = alter(SCHEMA, [RenameColumn("v", "w")])
KEY = SCHEMA.key_ids[0]
LOW, HIGH = KeyRange(None, b"\x80"), KeyRange(b"\x80", None)
PARTS = PartitionSchema((HashLevel((KEY,), 2, 7),), (KEY,), (LOW, HIGH))
T, OTHER = "a" * 32, "b" * 32
"""Ids of tables."""


def uuid(number):
    return ServerUuid(f"{number:032x}")


def config(*servers, at=(1, 1)):
    made = membership.initial(Member(uuid(n), f"p{n}:1", f"s{n}:1") for n in servers)
    return Configuration(made.members, NO_OP if at is None else OpId(*at))


def tablet(number):
    return f"{number:032d}"


def replica(
    number, part, *, table=T, name="t", schema=SCHEMA, servers=(1, 2, 3), at=(1, 1), term=3, leader=1,
    index=10, state="RUNNING", retired_at=0, ranges=(), columns_from=0, rows=5, transactions=(), kind=0,
    error="",
):  # fmt: skip
    """Return the status of a replica; `part`: (bucket, range)."""
    bucket, range_ = part
    status = pb.TabletStatus(
        rows=rows, applied_term=term, applied_index=index, safe_time=NOW - 100 + index
    )
    status.report.tablet_id, status.report.state = tablet(number), state
    consensus = convert.consensus_to_proto(
        config(*servers, at=at), term, uuid(leader) if leader else None
    )
    status.report.consensus.CopyFrom(consensus)
    status.report.error = error
    if state == "FAILED":
        return status
    status.report.table_id, status.report.retired_at, status.report.kind = table, retired_at, kind
    buckets = () if bucket is None else (bucket,)
    status.partition.CopyFrom(convert.partition_to_proto(TabletPartition(buckets, range_)))
    spec = status.definition.spec
    spec.name, spec.kind = name, kind
    spec.schema.CopyFrom(convert.schema_to_proto(schema))
    if not kind:
        spec.partition.CopyFrom(convert.partition_schema_to_proto(PARTS))
        spec.ranges_version = max((v for v, _ in ranges), default=0)
    status.definition.columns_from = columns_from
    for version, stamp in ranges:
        status.definition.ranges.add(version=version, at=stamp)
    for id_, prepared, ended, *decided in transactions:
        known = status.definition.transactions.add(transaction=id_, prepared=prepared, ended=ended)
        known.decided = sum(decided)
    return status


def answer(number, *tablets, cluster="c", time=NOW - 50, revocations=()):
    info = pb.ServerInfoResponse(
        uuid=uuid(number), role="tserver", cluster_id=cluster, address=f"s{number}:1",
        peer_address=f"p{number}:1", hybrid_time=time,
    )  # fmt: skip
    own = []
    for status in tablets:
        own.append(pb.TabletStatus())
        own[-1].CopyFrom(status)
        leads = status.report.consensus.leader == uuid(number)
        own[-1].report.role = "LEADER" if leads else "FOLLOWER"
    return ServerAnswer(info, own, revocations)


def table_of(**changed):
    """Return replicas of the four tablets of a table, the same on each server."""
    parts = [(b, r) for r in (LOW, HIGH) for b in (0, 1)]
    return [replica(n, part, **changed) for n, part in enumerate(parts, 1)]


def everywhere(*tablets):
    """Return the answers of three servers that all have these replicas."""
    return [answer(n, *tablets) for n in (1, 2, 3)]


def rebuilt(answers, **choices) -> RebuildPlan:
    usual = RebuildChoices(now_us=NOW_US, rng=Random(5), history_s=1000, ahead_us=5_000_000)
    return plan(answers, replace(usual, **choices))
