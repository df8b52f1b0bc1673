"""Invalid tickets, predicates and control messages are refused; they change nothing, and no server ends."""

from typing import Any

import pytest

from nyala.wire import methods
from nyala.wire.proto import flight_pb2
from nyala.wire.proto import nyala_pb2 as pb
from tests.cluster.support import bad_input
from tests.cluster.support.direct import Direct, mutations, raw_call, refusal
from tests.waiting import wait_until

client, table, direct = bad_input.client, bad_input.table, bad_input.direct
nothing_changed = bad_input.nothing_changed


def test_malformed_tickets_are_refused(direct, table):
    path = "/" + methods.DO_GET.path
    token = bytes(table.scan(where="k < 50 and v like 'row%'").tokens()[0])
    good = pb.ScanToken.FromString(token)
    for damaged in mutations(token, 11, 150):
        raw = flight_pb2.Ticket(ticket=damaged).SerializeToString()
        assert raw_call(good.replicas[0], path, [raw], streams=True) != "INTERNAL", damaged
    changes: list[dict[str, Any]] = [
        {"tablet_id": ""}, {"tablet_id": "x" * 100_000}, {"schema_version": 77},
        {"column_ids": [99], "all_columns": False}, {"limit": (1 << 64) - 1}, {"at": (1 << 64) - 1},
        {"at": 1}, {"batch_bytes": (1 << 64) - 1, "batch_rows": (1 << 64) - 1}, {"keys_ipc": b"junk"},
        {"resume_after": b"\xff" * 10_000, "ordered": True}, {"changes": True, "since": (1 << 64) - 1},
        {"key_lower": b"\xff" * 10_000, "key_upper": b"\x00"}, {"key_lower": b"\xff" * 10_000},
    ]  # fmt: skip
    for change in changes:
        for name in change:
            good.ClearField(name)  # type: ignore[arg-type]  # a name of the list above
        good.MergeFrom(pb.ScanToken(**change))
        answer = refusal(direct.read, good.replicas[0], good)
        assert answer != "INTERNAL", change
        good = pb.ScanToken.FromString(token)


def refused_by_leader(direct: Direct, token: pb.ScanToken) -> str | None:
    """Return the leader's refusal of a token; None: none of the replicas leads at present."""
    answers = (refusal(direct.read, replica, token) for replica in token.replicas)
    return next((one for one in answers if one != "NOT_LEADER"), None)


def test_malformed_predicates_are_refused(direct, table):
    token = pb.ScanToken.FromString(bytes(table.scan(where="k < 50").tokens()[0]))
    deep = pb.Predicate(kind=pb.Predicate.NOT)
    for _ in range(60):
        deep = pb.Predicate(kind=pb.Predicate.NOT, children=[deep])
    for bad in (
        deep,
        pb.Predicate(kind=pb.Predicate.EQ, column_id=1, values_ipc=b"junk"),
        pb.Predicate(kind=pb.Predicate.EQ, column_id=999),
        pb.Predicate(kind=pb.Predicate.IN, column_id=1),
        pb.Predicate(kind=pb.Predicate.PREFIX, column_id=1),
        pb.Predicate.FromString(b"\x08\x63"),
    ):
        token.where.CopyFrom(bad)
        answer = wait_until(lambda: refused_by_leader(direct, token), "an answer of the leader")
        assert answer in ("INVALID_ARGUMENT", "NOT_FOUND", "SCHEMA_MISMATCH"), answer


CONTROL = [
    (methods.CREATE_TABLE, "master"), (methods.DROP_TABLE, "master"),
    (methods.DESCRIBE_TABLE, "master"), (methods.TABLET_LOCATIONS, "master"),
    (methods.HEARTBEAT, "master"), (methods.LIST_TABLES, "master"),
    (methods.CREATE_TABLET, "tserver"), (methods.DELETE_TABLET, "tserver"),
    (methods.LIST_TABLETS, "tserver"), (methods.SERVER_INFO, "tserver"),
]  # fmt: skip


@pytest.mark.parametrize(("method", "role"), CONTROL, ids=[m.path for m, _ in CONTROL])
def test_malformed_control_messages_are_refused(cluster, table, method, role):
    """Damaged protobuf and empty messages: an error or a harmless answer, never INTERNAL."""
    spec = pb.TableSpec(name="bad", replicas=3)
    spec.schema.version = 1
    samples: list[bytes] = [
        b"", b"\xff" * 40, b"\x0a\xff\xff\xff\xff\x0f", bytes(100),
        pb.CreateTableRequest(table=spec).SerializeToString(),
        pb.DeleteTabletRequest(
            destination_uuid="nobody", tablet_id=table.tablets()[0].id, reason="hostile"
        ).SerializeToString(),
        pb.HeartbeatRequest(full=True, server=pb.ServerInfoResponse(role="tserver")).SerializeToString(),
    ]  # fmt: skip
    address = cluster.address(cluster.leader_master() if role == "master" else "tserver-0")
    for seed, sample in enumerate(list(samples)[4:]):
        samples += mutations(sample, seed, 12)
    for raw in samples:
        status = raw_call(address, "/" + method.path, [raw], streams=False)
        assert status not in ("INTERNAL", "UNKNOWN"), (status, raw)


def test_orders_from_unknown_sender_are_refused(cluster, direct, table):
    """A tablet is not deleted by a request that is not from the leader master of this term."""
    place = table.tablets()[0]
    server = direct.ask(place.leader, methods.SERVER_INFO, pb.ServerInfoRequest())
    for fence in (
        pb.Fence(),
        pb.Fence(catalog_incarnation="0" * 32, term=99),
    ):
        request = pb.DeleteTabletRequest(
            destination_uuid=server.uuid, fence=fence, tablet_id=place.id, reason="hostile"
        )
        assert refusal(direct.ask, place.leader, methods.DELETE_TABLET, request) == "CAS_FAILED"
