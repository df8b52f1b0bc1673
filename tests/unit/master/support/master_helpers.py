"""Values that the master's tests share: definitions, servers, reports."""

from collections.abc import Sequence

import pyarrow as pa

from nyala.common.partitioning.partition import HashLevel, PartitionSchema
from nyala.common.schema import from_arrow
from nyala.wire import convert
from nyala.wire.proto import nyala_pb2 as pb

SCHEMA = from_arrow(pa.schema([("k", pa.int64()), ("v", pa.string())]), ["k"])


def create_request(name: str, buckets: int = 1, replicas: int = 3) -> pb.CreateTableRequest:
    levels = () if buckets == 1 else (HashLevel((SCHEMA.columns[0].id,), buckets, 7),)
    return pb.CreateTableRequest(
        table=pb.TableSpec(
            name=name,
            schema=convert.schema_to_proto(SCHEMA),
            partition=convert.partition_schema_to_proto(PartitionSchema(levels)),
            replicas=replicas,
        )
    )


def server_info(name: str, location: str = "", incarnation: int = 0) -> pb.ServerInfoResponse:
    return pb.ServerInfoResponse(
        uuid=name,
        role="tserver",
        address=f"{name}:1",
        peer_address=f"{name}:2",
        location=location,
        incarnation=incarnation,
    )


def master_status(masters: Sequence[str]) -> pb.MasterStatusResponse:
    status = pb.MasterStatusResponse()
    for name in masters:
        status.consensus.members.add(uuid=name, address=f"{name}:1")
    return status


def report(
    tablet_id: str,
    members: Sequence[str] = ("a", "b", "c"),
    leader: str = "",
    term: int = 0,
    config: tuple[int, int] = (0, 0),
    state: str = "RUNNING",
) -> pb.TabletReport:
    made = pb.TabletReport(tablet_id=tablet_id, state=state)
    consensus = made.consensus
    consensus.term, consensus.leader = term, leader
    consensus.config_term, consensus.config_index = config
    for member in members:
        consensus.members.add(uuid=member, address=f"{member}:1", voter=True)
    return made
