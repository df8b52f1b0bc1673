"""A resumed leader does not know its successor; it must not serve reads or writes."""

from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

import pyarrow as pa
import pytest

from nyala.client import Client
from nyala.common.errors import NotLeader, NyalaError
from nyala.testing import MiniCluster
from nyala.wire.proto import nyala_pb2 as pb
from tests.cluster.support import leading
from tests.cluster.support.direct import Direct, refusal
from tests.waiting import wait_until

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])


def token(client: Client, table, *, latest: bool) -> pb.ScanToken:
    made = pb.ScanToken.FromString(bytes(table.scan(mode="latest").tokens()[0]))
    made.mode = pb.LATEST if latest else pb.SNAPSHOT
    made.at = 0 if latest else client.now()
    made.timeout_ms = 3_000
    return made


def all_run(futures: list[Future[str]]) -> bool:
    return all(f.running() for f in futures)


def who_reads(cluster: MiniCluster, direct: Direct, request: pb.ScanToken, rows: list[int]) -> str:
    """Return the leader that the masters report, if it reads these rows; else None."""
    name = leading.leader(cluster, "p")
    return name if refusal(direct.read, cluster.address(name), request) == str(rows) else ""


@pytest.mark.full
def test_resumed_leader_never_omits_writes_acknowledged_elsewhere(cluster):
    with cluster.connect() as client, Direct() as direct:
        table = client.create_table("p", SCHEMA, ["k"])
        for round_ in range(3):
            table.upsert([{"k": 1, "v": 2 * round_}]).raise_for_errors()
            stale = token(client, table, latest=True)
            reads = partial(who_reads, cluster, direct, stale, [2 * round_])
            old = wait_until(reads, "the leader reads what was written")
            address = cluster.address(old)
            cluster.pause(old)
            try:
                table.upsert([{"k": 1, "v": 2 * round_ + 1}]).raise_for_errors()
                after = token(client, table, latest=False)
                with ThreadPoolExecutor(8) as pool:  # the requests wait in its socket buffers
                    requests = [stale, after] * 4
                    asked = [pool.submit(refusal, direct.read, address, r) for r in requests]
                    wait_until(partial(all_run, asked), "reads are under way")
                    cluster.resume(old)
                    answers = [f.result() for f in asked]
            finally:
                cluster.resume(old)
            answers += [refusal(direct.read, address, request) for request in [stale, after] * 10]
            allowed = {str([2 * round_ + 1]), "NOT_LEADER", "TIMED_OUT", "UNAVAILABLE"}
            assert set(answers) <= allowed, f"round {round_}: {answers}"
            assert table.get({"k": 1}) == {"k": 1, "v": 2 * round_ + 1}


def test_follower_refuses_reads_and_writes_with_leader_hint(cluster):
    with cluster.connect() as client, Direct() as direct:
        table = client.create_table("f", SCHEMA, ["k"])
        table.upsert([{"k": 1, "v": 1}]).raise_for_errors()
        request = token(client, table, latest=True)

        def named_by(name: str) -> str:
            try:
                return f"nobody: it reads {direct.read(cluster.address(name), request)}"
            except NotLeader as err:
                return err.address or ""

        def refused() -> bool:
            leader = leading.leader(cluster, "f")
            others = [n for n in cluster.names if n.startswith("tserver") and n != leader]
            return [named_by(n) for n in others] == [cluster.address(leader)] * 2

        wait_until(refused, "both followers refuse and name the leader")


def test_paused_majority_stops_writes_and_catches_up_when_resumed(cluster):
    with cluster.connect() as client, cluster.connect(2_000) as with_short_timeout:
        table = client.create_table("m", SCHEMA, ["k"])
        leader = leading.leader(cluster, "m")
        followers = [n for n in cluster.names if n.startswith("tserver") and n != leader]
        for name in followers:
            cluster.pause(name)
        try:
            with pytest.raises(NyalaError) as caught:
                with_short_timeout.table("m").insert([{"k": 7, "v": 7}])
            assert caught.value.code in ("OUTCOME_UNKNOWN", "TIMED_OUT")
        finally:
            for name in followers:
                cluster.resume(name)
        result = table.insert_ignore([{"k": 7, "v": 7}]).raise_for_errors()
        assert result.rows == 1
        assert table.get({"k": 7}) == {"k": 7, "v": 7}
