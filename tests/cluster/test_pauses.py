"""A leader that is stopped and goes on later believes that it still leads: it must not read or write so."""

from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

import pyarrow as pa
import pytest

from nyala.client import Client
from nyala.common.errors import NotLeader, NyalaError
from nyala.wire.proto import nyala_pb2 as pb
from tests.cluster.direct import Direct, refusal
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


def test_a_resumed_leader_never_answers_with_less_than_was_acknowledged_elsewhere(cluster):
    with cluster.connect() as client, Direct() as direct:
        table = client.create_table("p", SCHEMA, ["k"])
        for round_ in range(3):
            table.upsert([{"k": 1, "v": 2 * round_}]).raise_for_errors()
            (old,) = cluster.leaders("p").values()
            address = cluster.address(old)
            stale = token(client, table, latest=True)
            assert direct.read(address, stale) == [2 * round_]
            cluster.pause(old)
            table.upsert([{"k": 1, "v": 2 * round_ + 1}]).raise_for_errors()
            after = token(client, table, latest=False)
            with ThreadPoolExecutor(
                8
            ) as pool:  # they wait in the sockets of the one that is paused
                asked = [pool.submit(refusal, direct.read, address, r) for r in [stale, after] * 4]
                wait_until(partial(all_run, asked), "reads are under way")
                cluster.resume(old)
                answers = [f.result() for f in asked]
            answers += [refusal(direct.read, address, request) for request in [stale, after] * 10]
            allowed = {str([2 * round_ + 1]), "NOT_LEADER", "TIMED_OUT", "UNAVAILABLE"}
            assert set(answers) <= allowed, f"round {round_}: {answers}"
            assert table.get({"k": 1}) == {"k": 1, "v": 2 * round_ + 1}


def test_a_follower_refuses_reads_and_writes_and_names_the_leader(cluster):
    with cluster.connect() as client, Direct() as direct:
        table = client.create_table("f", SCHEMA, ["k"])
        table.upsert([{"k": 1, "v": 1}]).raise_for_errors()
        (leader,) = cluster.leaders("f").values()
        others = [n for n in cluster.names if n.startswith("tserver") and n != leader]
        for name in others:
            with pytest.raises(NotLeader) as caught:
                direct.read(cluster.address(name), token(client, table, latest=True))
            assert caught.value.address == cluster.address(leader)


def test_a_paused_follower_catches_up_and_a_paused_majority_stops_writes(cluster):
    with cluster.connect() as client, cluster.connect(2_000) as hasty:
        table = client.create_table("m", SCHEMA, ["k"])
        (leader,) = cluster.leaders("m").values()
        followers = [n for n in cluster.names if n.startswith("tserver") and n != leader]
        for name in followers:
            cluster.pause(name)
        try:
            with pytest.raises(NyalaError) as caught:
                hasty.table("m").insert([{"k": 7, "v": 7}])
            assert caught.value.code in ("OUTCOME_UNKNOWN", "TIMED_OUT")
        finally:
            for name in followers:
                cluster.resume(name)
        result = table.insert_ignore([{"k": 7, "v": 7}]).raise_for_errors()
        assert result.rows == 1
        assert table.get({"k": 7}) == {"k": 7, "v": 7}
