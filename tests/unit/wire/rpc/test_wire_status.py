"""Errors keep class, message and details across the wire, for any content."""

import asyncio

import grpc
import pytest

from nyala.common import errors
from nyala.common.errors import BY_CODE, InvalidArgument, NotLeader, NyalaError, TooLarge
from nyala.wire import methods, status
from nyala.wire.proto import nyala_pb2
from tests.unit.wire.support.wire_helpers import BatchStore, served


def test_error_codes_round_trip_over_a_connection():
    async def scenario():
        async with served(BatchStore()) as (rpc, address):
            for code, expected in BY_CODE.items():
                request = nyala_pb2.DescribeTableRequest(name=code)
                with pytest.raises(NyalaError) as caught:
                    await rpc.call(address, methods.DESCRIBE_TABLE, request, timeout_ms=5000)
                assert type(caught.value) is expected, code
                assert caught.value.code == code
                assert caught.value.message == "what happened; what to do"
                assert caught.value.details == {"leader": "abc", "n": "7"}

    asyncio.run(scenario())


def test_each_code_has_a_status_and_each_design_code_a_class():
    assert set(status.STATUS) == set(BY_CODE) - {"INTERNAL"}
    for code in status.STATUS:
        text_code, text, _ = status.to_status(errors.from_code(code, "m"))
        assert isinstance(text_code, grpc.StatusCode)
        assert text == f"m [{code}]"


def test_unknown_error_code_of_newer_server_is_an_error():
    err = status.from_proto(nyala_pb2.Error(code="NOVEL", message="m"))
    assert type(err) is NyalaError
    assert status.to_status(err)[0] is grpc.StatusCode.INTERNAL


def test_internal_error_discloses_nothing_to_caller(caplog):
    err = status.as_nyala_error(RuntimeError("the secret inside"), "a.B/C")
    assert "secret" not in str(err)
    assert "a.B/C" in str(err)
    assert "the secret inside" in caplog.text


def test_long_and_non_ascii_error_texts_fit_into_metadata():
    odd = "\ud800\0\n" + "é" * 50_000
    carried = status.to_proto(InvalidArgument(odd, {f"{n}{odd}": odd for n in range(100)}))
    assert carried.ByteSize() < 6000
    _, text, trailer = status.to_status(InvalidArgument(odd))
    assert len(text.encode()) < 1100
    assert sum(len(v) for _, v in trailer) < 1200
    assert status.from_proto(carried).message.startswith("?\0\né")


def rpc_error(code, details="", trailer=()):
    return grpc.aio.AioRpcError(
        code, grpc.aio.Metadata(), grpc.aio.Metadata(*trailer), details=details
    )


def test_foreign_grpc_statuses_become_nyala_errors():
    code = grpc.StatusCode
    for given, expected in [
        (rpc_error(code.UNAVAILABLE), "UNAVAILABLE"),
        (rpc_error(code.DEADLINE_EXCEEDED), "TIMED_OUT"),
        (rpc_error(code.RESOURCE_EXHAUSTED, "busy"), "THROTTLED"),
        (rpc_error(code.UNIMPLEMENTED), "INVALID_ARGUMENT"),
        (rpc_error(code.UNKNOWN, "?"), "INTERNAL"),
        (rpc_error(code.INTERNAL, "Internal error from Core"), "UNAVAILABLE"),
        (rpc_error(code.ABORTED, "", [(status.METADATA_KEY, b"\xff")]), "INTERNAL"),
    ]:
        assert status.from_rpc_error(given, "h:1", "a.B/C").code == expected
    oversized = "SERVER: Received message larger than max (99 vs. 10)"
    err = status.from_rpc_error(rpc_error(code.RESOURCE_EXHAUSTED, oversized), "h:1", "a.B/C")
    assert isinstance(err, TooLarge)
    assert err.details == {"limit": "10", "size": "99"}


def test_leader_hints_survive_the_wire():
    sent = NotLeader("not here", {"leader": "b" * 32, "address": "127.0.0.1:7050"})
    back = status.from_proto(status.to_proto(sent))
    assert isinstance(back, NotLeader)
    assert (back.leader, back.address) == ("b" * 32, "127.0.0.1:7050")
