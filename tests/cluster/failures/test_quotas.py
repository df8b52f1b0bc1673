"""The quota of bytes of a table on real servers: refused, reported, freed, raised."""

import pyarrow as pa
import pytest

import nyala
from nyala.common.errors import NyalaError, QuotaExceeded
from nyala.testing import MiniCluster
from tests.waiting import wait_until

pytestmark = pytest.mark.full

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.string())])
QUOTA = 4_000_000


def rows(first, count=500):
    return [{"k": k, "v": f"{k:04000d}"} for k in range(first, first + count)]


def test_table_over_its_quota_takes_deletions_only_until_it_is_raised():
    parts = nyala.Partition(hash=[nyala.Hash(["k"], 2)])
    with MiniCluster() as cluster, cluster.connect() as client:
        table = client.create_table("small", SCHEMA, ["k"], parts, options={"max_bytes": QUOTA})
        other = client.create_table("other", SCHEMA, ["k"])
        written = 0

        def refused():
            nonlocal written
            try:
                table.upsert(rows(written)).raise_for_errors()
            except QuotaExceeded as err:
                return err
            except NyalaError:  # a part of the rows was written before
                return None
            written += 500
            return None

        error = wait_until(refused, "the table is over its quota")
        assert "max_bytes" in error.message
        assert written >= 500
        other.upsert(rows(0, 10)).raise_for_errors()
        assert table.get({"k": 0}) == rows(0, 1)[0]
        table.delete([{"k": k} for k in range(100)]).raise_for_errors()
        assert table.get({"k": 0}) is None
        with pytest.raises(NyalaError), client.transaction() as txn:
            table.upsert(rows(10_000, 10), txn=txn)
        cluster.kill(cluster.leader_master())
        table.alter().set_options({"max_bytes": str(100 * QUOTA)}).commit()
        wait_until(lambda: refused() is None, "rows are taken again")
