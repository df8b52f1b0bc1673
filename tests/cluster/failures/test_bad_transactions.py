"""Transactions that a correct client does not ask for, and the time that its requests carry."""

import pyarrow as pa
import pytest

from nyala.common.errors import InvalidArgument
from nyala.wire import methods
from nyala.wire.proto import transactions_pb2 as txn
from tests.cluster.support.direct import Direct

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])


@pytest.fixture
def table(cluster, request):
    with cluster.connect() as client:
        name = f"b_{request.node.name}"[:60]
        yield client.create_table(name, SCHEMA, ["k"], replicas=1)
        client.drop_table(name)


@pytest.mark.parametrize(
    "part",
    [
        txn.TxnPart(part="", batches=1, crc=1),
        txn.TxnPart(part="x" * 200, batches=1, crc=1),
        txn.TxnPart(part="a", batches=(1 << 32) - 1, crc=1),
    ],
    ids=["no name", "long name", "many batches"],
)
def test_malformed_part_is_refused_before_any_tablet_is_prepared(cluster, table, part):
    tablet = table.tablets()[0].id
    request = txn.TxnCommitRequest(transaction=b"t" * 16, since=1, timeout_ms=2_000)
    request.participants.add(tablet_id=tablet, parts=[part])
    with cluster.connect() as client, Direct() as direct:
        [leader] = [s.address for s in client.servers() if s.leader]
        with pytest.raises(InvalidArgument, match="cannot prepare the parts"):
            direct.ask(leader, methods.TXN_COMMIT, request)
        table.upsert([{"k": 1, "v": 1}]).raise_for_errors()


def test_time_of_a_commit_request_is_that_of_the_last_row(cluster, table):
    """The masters do not know the outcome of what may be older than what they have forgotten."""
    with cluster.connect() as client:
        own = client.table(table.name)
        with client.transaction() as opened:
            part = opened.part("rows")
            own.upsert([{"k": 1, "v": 1}], txn=part)
            first = part.staged().since
            own.upsert([{"k": 2, "v": 1}], txn=part)
            assert part.staged().since > first > 0
    assert table.count() == 2
