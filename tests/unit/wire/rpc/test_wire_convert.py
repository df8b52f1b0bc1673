"""Round trips of common values through their messages; invalid messages."""

import random
from decimal import Decimal

import pyarrow as pa
import pytest

from nyala.common import schema as schemas
from nyala.common.alteration import AddColumn, DropColumn, SetComment, SetDefault, Step, alter
from nyala.common.errors import InvalidArgument, NyalaError, TooLarge
from nyala.common.expressions.predicate import FALSE, TRUE, Not, all_of
from nyala.common.expressions.where import parse
from nyala.common.ids import OpId, ServerUuid
from nyala.common.partitioning.partition import partitions
from nyala.common.partitioning.partition_spec import Hash, Partition, Range, resolve
from nyala.raft.membership import Configuration, Member
from nyala.wire import convert, values
from nyala.wire.proto import nyala_pb2 as pb

NULL = values.array_to_ipc(pa.nulls(1, pa.int8()))
SCHEMA = schemas.from_arrow(
    pa.schema(
        [
            ("s", pa.string()), ("t", pa.timestamp("us", "UTC")), ("n", pa.int8()),
            ("d", pa.decimal128(9, 3)), ("f", pa.float32()), ("b", pa.bool_()),
        ]
    ),
    ["s", "t"], defaults={"n": 5, "f": 0.5}, immutable=["d"],
)  # fmt: skip


def sent(message):
    return type(message).FromString(message.SerializeToString())


def test_schemas():
    again = convert.schema_from_proto(sent(convert.schema_to_proto(SCHEMA)))
    assert again == SCHEMA
    assert again.column("n").default == pa.scalar(5, pa.int8())


def test_altered_schema_encodes_defaults_of_older_rows():
    steps: list[Step] = [
        AddColumn("late", pa.decimal128(5, 2), default=Decimal("1.50")),
        AddColumn("later", pa.string()),
        SetDefault("late", None),
        SetDefault("later", "x"),
        SetComment("later", "of the day"),
        DropColumn("n"),
    ]
    altered = alter(SCHEMA, steps)
    again = convert.schema_from_proto(sent(convert.schema_to_proto(altered)))
    assert again == altered
    late, later = again.column("late"), again.column("later")
    assert (late.default, late.read_default) == (None, pa.scalar(Decimal("1.50"), late.type))
    assert (later.default, later.read_default) == (pa.scalar("x"), pa.scalar(None, pa.string()))
    assert again.column("f").read_default is None


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda m: setattr(m.columns[2], "type", "int7"), "unknown column type 'int7'"),
        (lambda m: setattr(m.columns[2], "id", 0), "twice"),
        (lambda m: setattr(m.columns[2], "name", "s"), "twice"),
        (lambda m: m.key_ids.reverse(), "not the first"),
        (lambda m: m.ClearField("key_ids"), "not the first"),
        (lambda m: m.key_ids.append(77), "not the first"),
        (lambda m: setattr(m.columns[0], "nullable", True), "nullable"),
        (lambda m: setattr(m, "next_column_id", 3), "next column id"),
        (lambda m: setattr(m.columns[2], "default_ipc", b"junk"), "not an encapsulated Arrow message"),
        (lambda m: setattr(m.columns[2], "default_ipc", m.columns[4].default_ipc), "type int8"),
        (lambda m: setattr(m.columns[2], "read_default_ipc", b"junk"), "not an encapsulated Arrow message"),
        (lambda m: setattr(m.columns[2], "default_ipc", NULL), "null"),
        (lambda m: setattr(m.columns[0], "read_default_ipc", values.array_to_ipc(pa.array([""]))), "key"),
    ],
)  # fmt: skip
def test_invalid_schemas_are_refused(edit, words):
    message = convert.schema_to_proto(SCHEMA)
    edit(message)
    with pytest.raises(InvalidArgument, match=words):
        convert.schema_from_proto(message)


def test_partitionings():
    spec = Partition(
        hash=[Hash(["s"], 3), Hash(["t"], 2)],
        range=Range(["s"], [(None, "b"), ("b", "c"), ("x", None)]),
    )
    ps = resolve(spec, SCHEMA)
    assert convert.partition_schema_from_proto(sent(convert.partition_schema_to_proto(ps))) == ps
    for partition in partitions(SCHEMA, ps):
        again = convert.partition_from_proto(sent(convert.partition_to_proto(partition)))
        assert again == partition
        assert hash(again) == hash(partition)
    nothing = resolve(None, SCHEMA)
    assert (
        convert.partition_schema_from_proto(sent(convert.partition_schema_to_proto(nothing)))
        == nothing
    )
    assert convert.partition_from_proto(pb.Partition()) == partitions(SCHEMA, nothing)[0]


@pytest.mark.parametrize(
    "text",
    [
        "n = 3", "n <> 3 or n < 3 and n <= 3 or n > 3 and n >= 3", "s in ('a', 'b')", "d > 1.5",
        "s not like 'a%' and t > timestamp '2024-01-01'", "b and f is null", "not (n in (1) or f < 1)",
        "true", "false",
    ],
)  # fmt: skip
def test_predicates(text):
    tree = parse(text, SCHEMA)
    assert convert.predicate_from_proto(sent(convert.predicate_to_proto(tree)), SCHEMA) == tree


K = pb.Predicate
ONE = values.array_to_ipc(pa.array([1], pa.int8()))
LEAF = pb.Predicate(kind=K.EQ, column_id=2, values_ipc=ONE)


def nested(depth):
    message = pb.Predicate(kind=K.TRUE)
    for _ in range(depth):
        message = pb.Predicate(kind=K.NOT, children=[message])
    return message


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (pb.Predicate(), "kind 0 has 0 children"),
        (pb.Predicate(kind=K.OR, children=[LEAF]), "kind 1 has 1 children"),
        (pb.Predicate(kind=K.NOT, children=[LEAF, LEAF]), "kind 2 has 2 children"),
        (pb.Predicate(kind=K.EQ, column_id=2, values_ipc=ONE, children=[LEAF]), "has 1 children"),
        (pb.Predicate(kind=K.EQ, column_id=99, values_ipc=ONE), "column id 99"),
        (pb.Predicate(kind=K.EQ, column_id=0, values_ipc=ONE), "literals of type int8"),
        (pb.Predicate(kind=K.EQ, column_id=2), "not an encapsulated Arrow message"),
        (pb.Predicate(kind=K.EQ, column_id=2, values_ipc=values.array_to_ipc(pa.array([1, 2], pa.int8()))),
         "has 2 literals"),
        (pb.Predicate(kind=K.IN, column_id=2, values_ipc=values.array_to_ipc(pa.nulls(1, pa.int8()))),
         "1 of them null"),
        (pb.Predicate(kind=K.PREFIX, column_id=2, values_ipc=ONE), "no predicate of kind 11"),
        (pb.Predicate(kind=77, column_id=2, values_ipc=ONE), "no predicate of kind 77"),  # type: ignore[arg-type]
        (nested(91), "at most 90 levels"),
        (pb.Predicate(kind=K.AND, children=[pb.Predicate(kind=K.TRUE)] * 300_001), "300000 nodes"),
    ],
)  # fmt: skip
def test_invalid_predicates_are_refused(message, words):
    with pytest.raises(InvalidArgument, match=words):
        convert.predicate_from_proto(message, SCHEMA)


def test_deeply_nested_predicate_round_trips():
    assert convert.predicate_from_proto(sent(nested(90)), SCHEMA) == Not(
        convert.predicate_from_proto(nested(89), SCHEMA)
    )
    assert all_of([TRUE]) != FALSE


def test_values():
    for array in (pa.array([1, None]), pa.array(["a", ""]), pa.array([], pa.binary())):
        assert values.array_from_ipc(values.array_to_ipc(array)) == array
        assert values.array_from_ipc(values.array_to_ipc(array.slice(1))) == array.slice(1)
    with pytest.raises(TooLarge, match="4194305 bytes"):
        values.array_from_ipc(bytes((4 << 20) + 1))
    sink = pa.BufferOutputStream()
    batch = pa.record_batch([[1] * 1000], names=["v"])
    with pa.ipc.new_stream(
        sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")
    ) as writer:
        writer.write_batch(batch)
    with pytest.raises(InvalidArgument, match="compressed"):
        values.array_from_ipc(sink.getvalue().to_pybytes())
    two = pa.record_batch([[1], [2]], names=["a", "b"])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, two.schema) as writer:
        writer.write_batch(two)
    with pytest.raises(InvalidArgument, match="one column, not 2"):
        values.array_from_ipc(sink.getvalue().to_pybytes())


def test_damaged_values_raise_errors_without_crash():
    rng = random.Random(1)
    whole = [
        values.array_to_ipc(a)
        for a in (pa.array([1, 2, 3]), pa.array(["a", "b"]), pa.nulls(2, pa.int8()))
    ]
    refused = 0
    for _ in range(3_000):
        damaged = bytearray(rng.choice(whole))
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(damaged))
            if rng.random() < 0.8:
                damaged[at] = rng.choice([0, 1, 127, 128, 255, rng.randrange(256)])
            else:
                damaged[at:at] = rng.randbytes(4)
        try:
            values.array_from_ipc(bytes(damaged))
        except NyalaError:
            refused += 1
    assert 1_000 < refused < 3_000


def test_members_and_configurations():
    members = (
        Member(ServerUuid("a" * 32), "h:1", "h:2"),
        Member(ServerUuid("b" * 32), "h:3", "", False, True, True, False),
    )
    config = Configuration(members, OpId(3, 9))
    message = sent(convert.consensus_to_proto(config, 7, ServerUuid("a" * 32)))
    assert convert.configuration_from_proto(message) == config
    assert (message.term, message.leader) == (7, "a" * 32)
    assert convert.consensus_to_proto(config, 7, None).leader == ""
    assert [convert.member_from_proto(convert.member_to_proto(m)) for m in members] == list(members)
