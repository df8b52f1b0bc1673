"""Any Arrow Flight client reads and writes tables: nothing of nyala but its protobuf messages."""

import uuid
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from nyala.client import Client, Table
from nyala.common.partitioning.partition import locate
from nyala.common.partitioning.partition_spec import Hash, Partition
from nyala.testing import MiniCluster
from nyala.wire.proto import nyala_pb2 as pb

SCHEMA = pa.schema([("host", pa.string()), ("ts", pa.int64()), ("value", pa.float64())])
ROWS = 3_000


@pytest.fixture(scope="module")
def client(cluster) -> Iterator[Client]:
    with cluster.connect() as made:
        yield made


@pytest.fixture(scope="module")
def table(client) -> Table:
    made: Table = client.create_table(
        "metrics", SCHEMA, ["host", "ts"], Partition(hash=[Hash(["host"], 3)])
    )
    made.insert(
        pa.table(
            [[f"h{n % 20}" for n in range(ROWS)], list(range(ROWS)), [n / 2 for n in range(ROWS)]],
            schema=SCHEMA,
        )
    ).raise_for_errors()
    return made


def leader(cluster: MiniCluster) -> fl.FlightClient:
    return fl.connect("grpc://" + cluster.address(cluster.leader_master()))


def test_get_flight_info_and_do_get_return_every_row(cluster, table):
    with leader(cluster) as master:
        info = master.get_flight_info(fl.FlightDescriptor.for_path("metrics"))
        assert info.schema.equals(table.schema)
        assert len(info.endpoints) == 3
        parts = []
        for endpoint in info.endpoints:
            with fl.connect(endpoint.locations[0]) as server:
                parts.append(server.do_get(endpoint.ticket).read_all())
    found = pa.concat_tables(parts).sort_by("ts")
    assert found.column("ts").to_pylist() == list(range(ROWS))
    assert found.column("value").to_pylist() == [n / 2 for n in range(ROWS)]


def test_tables_are_listed_and_have_schemas(cluster, table):
    with leader(cluster) as master:
        names = [i.descriptor.path[0].decode() for i in master.list_flights()]
        assert "metrics" in names
        described = master.get_schema(fl.FlightDescriptor.for_path("metrics"))
        assert described.schema.equals(table.schema)
        with pytest.raises(pa.ArrowKeyError, match="no table 'nothing'"):
            master.get_flight_info(fl.FlightDescriptor.for_path("nothing"))


def test_do_put_writes_with_a_header_per_batch(cluster, client, table):
    """Write as a client in another language: look tablets up, group rows, one WriteHeader a batch."""
    partition = client.describe("metrics").partition
    batch = pa.record_batch(
        [["new", "newer", "h1"], [90_001, 90_002, 1], [1.5, 2.5, -1.0]], schema=SCHEMA
    )
    ids = [c.id for c in table.definition.columns]
    numbers = locate(table.definition, partition, batch)
    for number in sorted(set(numbers.tolist())):
        place = table.tablets()[number]
        of_tablet = batch.filter(pa.array(numbers == number))
        header = pb.WriteHeader(
            tablet_id=place.id, schema_version=table.definition.version, op=pb.UPSERT,
            client_id=uuid.uuid4().bytes, sequence=1, first_outstanding=1, column_ids=ids,
            timeout_ms=10_000, request=77,
        )  # fmt: skip
        with fl.connect(f"grpc://{place.leader}") as server:
            writer, reader = server.do_put(fl.FlightDescriptor.for_command(b"write"), SCHEMA)
            for attempt in range(2):  # the second is a retry: the same operation, executed once
                writer.write_with_metadata(of_tablet, header.SerializeToString())
                result = pb.WriteResult.FromString(reader.read().to_pybytes())
                assert not result.error.code, result.error
                assert (result.request, result.rows) == (77, of_tablet.num_rows)
                assert result.duplicate == bool(attempt)
            writer.close()
    assert table.get({"host": "newer", "ts": 90_002}) == {
        "host": "newer", "ts": 90_002, "value": 2.5,
    }  # fmt: skip
    assert table.get({"host": "h1", "ts": 1}, ["value"]) == {"value": -1.0}


@pytest.mark.parametrize("metadata", [None, b"\xff\xff\xff"])
def test_do_put_without_a_header_is_refused_also_if_its_results_are_not_read(table, metadata):
    batch = pa.record_batch([["x"], [1], [1.0]], schema=SCHEMA)

    def write() -> None:
        with fl.connect(f"grpc://{table.tablets()[0].leader}") as server:
            writer, _ = server.do_put(fl.FlightDescriptor.for_command(b"write"), SCHEMA)
            if metadata is None:
                writer.write_batch(batch)
            else:
                writer.write_with_metadata(batch, metadata)
            writer.close()

    with pytest.raises(pa.ArrowInvalid, match="WriteHeader"):
        write()
