"""Conditions on values in messages: round trips, old messages, and hostile ones."""

import random
from decimal import Decimal

import pyarrow as pa
import pytest
from google.protobuf.message import DecodeError

from nyala.common import schema as schemas
from nyala.common.errors import InvalidArgument, NyalaError, TooLarge
from nyala.common.expressions.evaluation import evaluate_value
from nyala.common.expressions.parser import parse_value
from nyala.common.expressions.predicate import UNKNOWN, evaluate
from nyala.common.expressions.where import parse
from nyala.wire.convert import POOLED_NODES, predicate_from_proto, predicate_to_proto
from nyala.wire.proto import nyala_pb2 as pb
from nyala.wire.values import (
    MAX_POOLS,
    MAX_VALUE_STEPS,
    array_to_ipc,
    expression_from_proto,
    expression_to_proto,
)

SCHEMA = schemas.from_arrow(
    pa.schema([("k", pa.int64()), ("s", pa.string()), ("n", pa.int8()), ("d", pa.decimal128(9, 3)),
               ("g", pa.float64())]), ["k"],
)  # fmt: skip
K, S = pb.Predicate, pb.ValueStep
COLUMN = S(kind=S.COLUMN, column_id=0)
FLOAT = S(kind=S.COLUMN, column_id=4)
TEXT = S(kind=S.COLUMN, column_id=1)
ONE = S(kind=S.LITERAL, value_ipc=array_to_ipc(pa.array([1])))
TWO = S(kind=S.LITERAL, value_ipc=array_to_ipc(pa.array([1, 2])))
LIST = S(kind=S.LITERAL, value_ipc=array_to_ipc(pa.array([[1]])))
ADD, CONCAT = S(kind=S.ADD), S(kind=S.CONCAT)


def sent(message):
    return type(message).FromString(message.SerializeToString())


@pytest.mark.parametrize(
    "text",
    [
        "k > n", "k + 1 = n * 2 - d / 3 % 4", "s || 'x' = 'yx'", "k / n is null", "not (k % n is null)",
        "s like '%a_\\%'", "s not ilike 'Ab' and s || s like '_'", "k in (1, null)", "k not in (n, 2, null)",
        "k between n and d", "k in (null)", "1 = 1", "1.5 + k > 9223372036854775808",
    ],
)  # fmt: skip
def test_conditions_round_trip(text):
    tree = parse(text, SCHEMA)
    assert predicate_from_proto(sent(predicate_to_proto(tree)), SCHEMA) == tree


@pytest.mark.parametrize(
    "text", ["k", "k + 1 * -n", "s || null", "null", "'a'", "date '2024-01-01'"]
)
def test_values_round_trip(text):
    tree = parse_value(text, SCHEMA)
    assert expression_from_proto(sent(expression_to_proto(tree)), SCHEMA) == tree


def test_many_literals_are_sent_in_pools():
    text = " or ".join(f"k > {i} and s = '{i}' or d + {i} > 0.5" for i in range(POOLED_NODES))
    tree = parse(text, SCHEMA)
    message = sent(predicate_to_proto(tree))
    assert len(message.pools_ipc) == 3  # of int64, string and decimal
    assert message.ByteSize() < 100 * POOLED_NODES
    assert predicate_from_proto(message, SCHEMA) == tree
    few = predicate_to_proto(parse("k > 1 and s = 'a' or d + 2 > 0.5", SCHEMA))
    assert len(few.pools_ipc) == 0  # older servers read it


def value(*steps):
    return pb.Value(steps=steps)


def condition(*steps):
    return pb.Predicate(kind=K.EQ, left=value(*steps), right=value(ONE))


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (condition(), "0 values without an operation"),
        (condition(COLUMN, ONE), "2 values without an operation"),
        (condition(ADD), "kind 2 after 0 values"),
        (condition(ONE, ADD), "kind 2 after 1 values"),
        (condition(COLUMN, ONE, S(kind=77)), "kind 77 after 2 values"),  # type: ignore[arg-type]
        (condition(S(kind=S.COLUMN, column_id=99)), "column id 99"),
        (condition(S(kind=S.LITERAL)), "not an encapsulated Arrow message"),
        (condition(S(kind=S.LITERAL, value_ipc=b"junk")), "not an encapsulated Arrow message"),
        (condition(TWO), "has 2 values, not one"),
        (condition(LIST), "column 'literal'"),
        (condition(COLUMN, TEXT, ADD), "takes numbers"),
        (condition(COLUMN, ONE, CONCAT), "joins strings"),
        (condition(TEXT), "does not compare"),
        (condition(S(kind=S.LITERAL, value_ipc=array_to_ipc(pa.nulls(1)))), "equals null"),
        (condition(*[ONE] * (MAX_VALUE_STEPS + 1)), "at most 1000 are allowed"),
        (condition(FLOAT, *[FLOAT, ADD] * 100), "at most 99 operators"),
        (condition(COLUMN, *[COLUMN, S(kind=S.MULTIPLY)] * 3), "can have 79 digits"),
        (condition(S(kind=S.LITERAL, pool=1, row=0)), "no literal 0 in pool 1"),
        (pb.Predicate(kind=K.EQ, left=value(COLUMN)), "no predicate of kind 3 on a value"),
        (pb.Predicate(kind=K.EQ, right=value(COLUMN)), "not an encapsulated Arrow message"),
        (pb.Predicate(kind=K.IN, left=value(COLUMN), right=value(ONE)), "no predicate of kind 9"),
        (pb.Predicate(kind=K.LIKE, left=value(COLUMN), pattern="a"), "no predicate of kind 15"),
        (pb.Predicate(kind=K.LIKE, column_id=1, pattern="a"), "not an encapsulated Arrow message"),
        (pb.Predicate(kind=K.LIKE, left=value(TEXT), pattern="_" * 1_001), "at most 1000 characters"),
        (pb.Predicate(kind=K.ILIKE, left=value(TEXT), pattern="a\\"), "may precede only"),
        (pb.Predicate(kind=K.EQ, pool=1, row=0), "no literal 0 in pool 1"),
        (pb.Predicate(kind=K.EQ, pool=1, row=1, pools_ipc=[ONE.value_ipc]), "no literal 1 in pool 1"),
        (pb.Predicate(kind=K.EQ, pool=2, row=0, pools_ipc=[ONE.value_ipc]), "no literal 0 in pool 2"),
        (pb.Predicate(kind=K.EQ, pool=1, column_id=1, pools_ipc=[ONE.value_ipc]), "literals of type int64"),
        (pb.Predicate(kind=K.TRUE, pools_ipc=[b"junk"]), "not an encapsulated Arrow message"),
        (pb.Predicate(kind=K.TRUE, pools_ipc=[ONE.value_ipc] * (MAX_POOLS + 1)), "at most 100 are allowed"),
        (pb.Predicate(kind=K.UNKNOWN, children=[condition(ONE)]), "has 1 children"),
        (pb.Predicate(kind=K.OR, children=[condition(FLOAT, *[FLOAT, ADD] * 99)] * 1_600), "300000 nodes"),
    ],
)  # fmt: skip
def test_hostile_conditions_are_refused(message, words):
    with pytest.raises(InvalidArgument, match=words):
        predicate_from_proto(sent(message), SCHEMA)


def test_pool_over_the_limit_is_refused():
    with pytest.raises(TooLarge, match="4194305 bytes"):
        predicate_from_proto(pb.Predicate(kind=K.TRUE, pools_ipc=[bytes((4 << 20) + 1)]), SCHEMA)


def test_damaged_conditions_are_refused_or_evaluated():
    chance = random.Random(3)
    columns = {
        0: pa.array([1, -(2**63), 2**63 - 1]), 1: pa.array(["a", None, "é"]),
        2: pa.array([0, None, -1], pa.int8()),
        3: pa.array([None, Decimal("0.001"), Decimal(-1)], pa.decimal128(9, 3)),
        4: pa.array([0.5, None, -1.0]),
    }  # fmt: skip
    texts = ("k % n = 1 or d * k > 2.5 - n", "s || 'a' like '_a%' and k / n is null or s ilike 'A'")
    whole = [predicate_to_proto(parse(t, SCHEMA)).SerializeToString() for t in texts]
    read = 0
    for _ in range(3_000):
        damaged = bytearray(chance.choice(whole))
        for _ in range(chance.randint(1, 3)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        try:
            message = pb.Predicate.FromString(bytes(damaged))
        except DecodeError:
            continue
        try:
            tree = predicate_from_proto(message, SCHEMA)
        except NyalaError:
            continue
        read += 1
        assert len(evaluate(tree, columns.__getitem__, 3)) == 3
    assert read > 100


def test_values_of_a_message_are_evaluated():
    tree = expression_from_proto(value(COLUMN, ONE, ADD), SCHEMA)
    assert evaluate_value(tree, lambda _: pa.array([1, 2]), 2).to_pylist() == [2, 3]
    assert predicate_from_proto(pb.Predicate(kind=K.UNKNOWN), SCHEMA) == UNKNOWN
