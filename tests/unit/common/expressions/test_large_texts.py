"""Work for a text is linear in it: steps of the parser, of messages, and of bounds, for n and 2n literals."""

import pyarrow as pa
import pytest

from nyala.common import schema as schemas
from nyala.common.expressions.bounds import key_bounds
from nyala.common.expressions.predicate import In, evaluate
from nyala.common.expressions.where import parse
from nyala.wire.convert import predicate_from_proto, predicate_to_proto
from tests.selected import first
from tests.unit.common.support import calls

SCHEMA = schemas.from_arrow(
    pa.schema([("k", pa.int64()), ("s", pa.string()), ("d", pa.decimal128(9, 2))]), ["k", "s"]
)
TEXTS = {
    "list": lambda n: f"k in ({', '.join(map(str, range(n)))})",
    "strings": lambda n: "s in (" + ", ".join(f"'{i}'" for i in range(n)) + ", null)",
    "equalities": lambda n: " or ".join(f"k = {i}" for i in range(n)),
    "differences": lambda n: " and ".join(f"d <> {i}.5" for i in range(n)),
    "pairs": lambda n: " or ".join(f"(k = {i} and s >= '{i}')" for i in range(n)),
    "values": lambda n: " or ".join(f"k + 1 > d * {i}" for i in range(n)),
    "negations": lambda n: "not " * n + "k = 1",
}


@pytest.mark.parametrize("name", first(TEXTS, 2))
def test_work_is_linear_in_the_text(name):
    def work(n):
        text = TEXTS[name](n)

        def run():
            tree = parse(text, SCHEMA)
            again = predicate_from_proto(predicate_to_proto(tree), SCHEMA)
            key_bounds(again, SCHEMA.key_columns)

        return calls.count(run)

    assert work(2_000) <= 2.3 * work(1_000)


def test_patterns_and_lists_of_hostile_size_are_evaluated_in_time_that_is_linear_in_the_values():
    """Abuse case 26: with backtracking, the first pattern would take longer than the universe is old."""
    schema = SCHEMA.column("s").id
    texts = pa.array(["a" * 60_000, "ab" * 3_000])
    for pattern in ("%a" * 499 + "%c", "%a_" * 333 + "c", "%_" * 499 + "c"):
        tree = parse(f"s like '{pattern}'", SCHEMA)
        assert evaluate(tree, {schema: texts}.__getitem__, 2).true_count == 0
    many = In(SCHEMA.column("k").id, pa.array(range(1_000_000)))
    keys = pa.array(range(-1_000, 1_000))
    found = evaluate(many, {SCHEMA.column("k").id: keys}.__getitem__, 2_000)
    assert found.true_count == 1_000


@pytest.mark.full
def test_a_mebibyte_of_literals_is_read():
    text = f"k in ({', '.join(map(str, range(100_000)))})"
    tree = parse(text, SCHEMA)
    assert len(tree.values) == 100_000  # type: ignore[union-attr]
    assert predicate_from_proto(predicate_to_proto(tree), SCHEMA) == tree
    long = "s = '" + "x" * ((1 << 20) - 6) + "'"
    assert predicate_from_proto(predicate_to_proto(parse(long, SCHEMA)), SCHEMA) == parse(
        long, SCHEMA
    )
