"""A grant that is revoked while a stream runs, and the same query after it is given again."""

import re
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException

import nyala
from nyala.operate import run
from nyala.security import issue
from nyala.security.principal import AccessRole
from nyala.wire import methods
from nyala.wire.proto import access_pb2 as pb
from tests.spark.stream_runs import SLOW_WORKER, TRIES
from tests.waiting import wait_until

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]
SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.int64())])


@pytest.fixture
def tables(client):
    yield [client.create_table(n, SCHEMA, ["k"], replicas=1) for n in ("read", "written")]
    for name in ("read", "written"):
        client.drop_table(name)


class Grants:
    """Grants of one user, which an administrator gives and revokes.

    Args:
        cluster: the cluster.
    """

    def __init__(self, cluster):
        self._cluster = cluster

    def _ask(self, method, request):
        certs = f"{self._cluster.dir}/certs"
        own: dict[str, Any] = {"cert": f"{certs}/admin.crt", "key": f"{certs}/admin.key"}
        with nyala.connect(self._cluster.masters, ca=f"{certs}/ca.crt", **own):
            run.ask_leader(self._cluster.masters, method, request)

    def give(self, table, role):
        self._ask(methods.GRANT, pb.GrantRequest(user="ann", role=role, table=table))

    def revoke(self, table):
        self._ask(methods.REVOKE_GRANT, pb.RevokeGrantRequest(user="ann", table=table))


@pytest.mark.parametrize(("revoked", "role"), [("written", "writer"), ("read", "reader")])
def test_stream_ends_with_the_missing_grant_and_continues_when_it_is_given(
    spark, cluster, client, tables, tmp_path, revoked, role
):
    source, target = tables
    files = issue.user(f"{cluster.dir}/certs", str(tmp_path / "ann"), "ann", AccessRole.USER)
    own = {"masters": cluster.masters, "ca": files.ca, "cert": files.cert, "key": files.key}
    grants = Grants(cluster)
    for name, given in (("read", "reader"), ("written", "writer")):
        grants.give(name, given)
    began = client.now()

    def query():
        changes = spark.readStream.format("nyala").options(table="read", starting="snapshot", **own)
        try:
            rows = changes.load().drop("_op", "_timestamp")
        except AnalysisException as err:
            if "table 'read': ann needs a grant" not in str(err):
                raise
            return None  # the grant is not in force yet
        writer = rows.writeStream.format("nyala").options(table="written", **own)
        name = f"revoked {revoked}"
        return writer.queryName(name).option("checkpointLocation", str(tmp_path / "point")).start()

    def keys():
        return target.scan(["k"], order=True).to_arrow()["k"].to_pylist()

    def settled(made, wanted):
        return made.exception() or keys() == wanted

    def started(wanted):
        """Start the query, again where its Python process is late or the grant has not come yet."""
        for _ in range(TRIES):
            made = wait_until(query, "the stream is loaded")
            wait_until(partial(settled, made, wanted), "the rows are written")
            if made.exception() is None:
                return made
            assert SLOW_WORKER in str(made.exception()) or "needs a grant" in str(made.exception())
        raise AssertionError(str(made.exception()))

    source.upsert([{"k": k, "v": 0} for k in range(10)])
    first = started(list(range(10)))
    grants.revoke(revoked)

    def ended():
        """Return the error of the query; until the servers know of it, it writes on."""
        source.upsert([{"k": 10, "v": 0}])
        return first.exception()

    text = str(wait_until(ended, "the query ends"))
    # A task that opens the table anew is refused as a reader.
    assert re.search(f"table {revoked!r}: ann needs a grant of the role (reader|{role}) on", text)
    assert "start it again with the same checkpointLocation" in text
    source.upsert([{"k": k, "v": 0} for k in range(11, 20)])
    grants.give(revoked, role)
    started(list(range(20))).stop()
    changes = target.changes(began, net=False).to_arrow()
    inserted = [
        k
        for k, op in zip(*(changes[c].to_pylist() for c in ("k", "_op")), strict=True)
        if op == "insert"
    ]
    assert sorted(inserted) == list(range(20))
