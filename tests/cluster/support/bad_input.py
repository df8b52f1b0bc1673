"""A table and batches for tests of invalid input; no test may change servers or data."""

import uuid
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from nyala.client import Client, Table
from nyala.common.errors import NyalaError
from nyala.common.partitioning.partition import locate
from nyala.common.partitioning.partition_spec import Hash, Partition, Range
from nyala.testing import MiniCluster
from nyala.wire import flight, methods
from nyala.wire.flight import FlightData
from nyala.wire.proto import nyala_pb2 as pb
from tests.cluster.support.direct import Direct
from tests.waiting import wait_until

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string()), ("x", pa.float64())])
PARTITION = Partition(hash=[Hash(["k"], 2)], range=Range(["k"], [(0, 1000)]))
ROWS = [{"k": n, "v": f"row {n}", "x": n / 2} for n in range(100)]


@pytest.fixture(scope="module")
def client(cluster) -> Iterator[Client]:
    with cluster.connect() as made:
        made.create_table("bad", SCHEMA, ["k"], PARTITION).insert(ROWS).raise_for_errors()
        yield made
        made.drop_table("bad")


@pytest.fixture(scope="module")
def table(client) -> Table:
    opened: Table = client.table("bad")
    return opened


@pytest.fixture(scope="module")
def direct() -> Iterator[Direct]:
    with Direct() as made:
        yield made


@pytest.fixture(autouse=True)
def nothing_changed(cluster, client, table, direct) -> Iterator[None]:
    """Check after each test that every server has its incarnation, and that the data is unchanged."""
    before = incarnations(cluster, direct)
    yield
    assert incarnations(cluster, direct) == before
    assert sorted(table.scan().to_arrow().to_pylist(), key=lambda r: r["k"]) == ROWS
    wait_until(
        lambda: all_run(cluster, direct), "incomplete replicas of other tests run or are deleted"
    )


def all_run(cluster: MiniCluster, direct: Direct) -> bool:
    """Return whether all replicas run or are tombstones; none may ever have failed."""
    answer = [
        direct.ask(cluster.address(n), methods.LIST_TABLETS, pb.ListTabletsRequest())
        for n in cluster.names
        if n.startswith("tserver")
    ]
    states = {t.report.state for a in answer for t in a.tablets}
    assert "FAILED" not in states
    return states <= {"RUNNING", "TOMBSTONED"}


def incarnations(cluster: MiniCluster, direct: Direct) -> dict[str, int]:
    """Return each server's incarnation, which changes with each start."""
    return {
        n: direct.ask(cluster.address(n), methods.SERVER_INFO, pb.ServerInfoRequest()).incarnation
        for n in cluster.names
    }


class Batches:
    """Encodes batches as the client does, with an invalid value for any part."""

    def __init__(self, client: Client, table: Table) -> None:
        self.places = table.tablets()
        self.definition = table.definition
        self.schema = pa.schema([("k", pa.int64()), ("v", pa.string()), ("x", pa.float64())])
        partition = client.describe("bad").partition
        keys = list(range(1, 20))
        batch = pa.record_batch([keys, ["w"] * 19, [0.0] * 19], schema=self.schema)
        numbers = locate(self.definition, partition, batch)
        self.place = self.places[int(numbers[0])]
        self.other = self.places[1 - int(numbers[0])]
        self.mine = batch.filter(pa.array(numbers == numbers[0]))
        self.foreign = batch.filter(pa.array(numbers != numbers[0]))
        self.address = self.place.leader or ""

    def header(self, **wrong: Any) -> pb.WriteHeader:
        values: dict[str, Any] = {
            "tablet_id": self.place.id, "schema_version": self.definition.version, "op": pb.INSERT,
            "client_id": uuid.uuid4().bytes, "sequence": 1, "first_outstanding": 1,
            "column_ids": [c.id for c in self.definition.columns], "timeout_ms": 5_000, "request": 9,
        }  # fmt: skip
        return pb.WriteHeader(**(values | wrong))

    def message(self, batch: pa.RecordBatch, **wrong: object) -> FlightData:
        return flight.batch_data(batch, self.header(**wrong).SerializeToString())


@pytest.fixture
def batches(client, table) -> Batches:
    return Batches(client, table)


def put(direct: Direct, batches: Batches, data: FlightData, schema: pa.Schema | None = None) -> str:
    """Send one message; return the code of its refusal."""
    try:
        (result,) = direct.put(batches.address, schema or batches.schema, [data])
    except NyalaError as err:
        return err.code
    return result.error.code or f"took {result.rows} rows, {len(result.row_errors)} errors"
