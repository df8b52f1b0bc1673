"""The constants of `wire/methods.py` and the generated modules."""

import importlib.util
from pathlib import Path

import pytest

from nyala.common.errors import InvalidArgument
from nyala.env.rpc import Method, Shape
from nyala.wire import methods
from nyala.wire.proto import flight_pb2, nyala_pb2

ROOT = Path(__file__).resolve().parents[4]
CONSTANTS = {name: m for name, m in vars(methods).items() if isinstance(m, Method)}


def test_regenerating_the_protobuf_modules_gives_the_committed_bytes(tmp_path):
    spec = importlib.util.spec_from_file_location("r", ROOT / "scripts" / "regenerate_proto.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    written = script.regenerate(tmp_path)
    assert len(written) == 2 * len(list((ROOT / "src/nyala/wire/proto").glob("*.proto")))
    for path in written:
        assert (tmp_path / path).read_bytes() == (ROOT / "src" / path).read_bytes(), path


def test_each_rpc_of_our_own_services_has_a_constant():
    described = {
        f"{service.full_name}/{method.name}"
        for service in nyala_pb2.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    }
    assert described <= {m.path for m in CONSTANTS.values()}
    assert len({m.path for m in CONSTANTS.values()}) == len(CONSTANTS)


def test_method_shapes_equal_descriptors():
    assert methods.CREATE_TABLE.shape is Shape.UNARY
    assert methods.DO_GET.shape is Shape.SERVER_STREAM
    assert methods.DO_PUT.shape is Shape.BIDI
    assert methods.DO_GET.path == "arrow.flight.protocol.FlightService/DoGet"


def test_codecs_round_trip_and_keep_unknown_fields():
    request = nyala_pb2.DescribeTableRequest(name="t", id="0" * 32)
    codec = methods.DESCRIBE_TABLE
    assert codec.decode_request(codec.encode_request(request)) == request
    from_the_future = codec.encode_request(request) + b"\xfa\x3e\x03new"  # field 1007
    assert codec.encode_request(codec.decode_request(from_the_future)) == from_the_future


@pytest.mark.parametrize("method", CONSTANTS.values(), ids=CONSTANTS)
def test_malformed_message_bytes_are_refused(method):
    for decode in (method.decode_request, method.decode_response):
        with pytest.raises(InvalidArgument, match=r"is not a"):
            decode(b"\x0a\xff\xff\xff\xff\x0f")


def test_wrong_message_class_raises_invariant_error():
    with pytest.raises(AssertionError, match=r"nyala\.v1\.ListTablesRequest"):
        methods.LIST_TABLES.encode_request(flight_pb2.Ticket())
