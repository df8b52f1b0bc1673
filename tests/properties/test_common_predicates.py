"""Predicates against a naive evaluator; bounds, pruning and normal forms keep all rows."""

from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import example, given
from hypothesis import strategies as st

from nyala.common.errors import InvalidArgument, NotFound
from nyala.common.expressions.bounds import bounds, comparable, key_bounds
from nyala.common.expressions.predicate import CompareOp, columns_of, evaluate, negate, push_down
from nyala.common.expressions.where import parse
from nyala.common.keys import encoding as keys
from nyala.common.partitioning.partition import locate, partitions, prune
from nyala.common.partitioning.partition_spec import Hash, Partition, Range, resolve
from tests.properties.support.common_strategies import SCHEMA, TREES, batches
from tests.properties.support.predicate_reference import SIGNS, evaluate_reference


def truth(tree, batch):
    return evaluate(tree, lambda i: batch.column(SCHEMA.by_id[i].name), len(batch)).to_pylist()


@given(TREES, batches())
def test_evaluation_equals_reference_implementation(tree, batch):
    rows = [dict(zip(SCHEMA.by_id, row.values(), strict=True)) for row in batch.to_pylist()]
    found = truth(tree, batch)
    assert found == [evaluate_reference(tree, row) for row in rows]
    assert truth(push_down(tree), batch) == found
    assert truth(negate(tree), batch) == [None if t is None else not t for t in found]
    assert all(i in SCHEMA.by_id for i in columns_of(tree))


@given(TREES, batches())
def test_bounds_contain_every_accepted_row(tree, batch):
    accepted = batch.filter(
        evaluate(tree, lambda i: batch.column(SCHEMA.by_id[i].name), len(batch))
    )
    for column in SCHEMA.columns:
        found = bounds(tree, column.id)
        values = accepted.column(column.name)
        assert found.nulls or values.null_count == 0
        assert not (found.empty and len(accepted))
        if pa.types.is_floating(column.type):
            values = values.filter(pc.invert(pc.is_nan(values)))
        for value in (v for v in values if v.is_valid):
            assert found.holds(comparable(value))
            allowed = [comparable(v) for v in found.values or ()]
            assert found.values is None or comparable(value) in allowed
            assert found.may_match(value, value, has_nulls=False)


@given(TREES, batches())
def test_key_bounds_contain_every_accepted_row(tree, batch):
    found = key_bounds(tree, SCHEMA.key_columns)
    encoded = keys.encode_keys([batch.column("s"), batch.column("n")], [pa.string(), pa.int8()])
    for i, accepted in enumerate(truth(tree, batch)):
        if accepted:
            key = encoded.key_at(i)
            assert key >= found.lower
            assert found.upper is None or key < found.upper
            assert found.overlaps(key, key + b"\0")


PARTITIONINGS = [
    resolve(spec, SCHEMA)
    for spec in (
        Partition(hash=[Hash(["s"], 4), Hash(["n"], 3)]),
        Partition(range=Range(["n"], [(None, -1), (0, 2), (2, None)])),
        Partition(
            hash=[Hash(["n"], 2)], range=Range(["s", "n"], [(("a", 0), ("b", 0)), (("b", 1), None)])
        ),
    )
]


@given(TREES, batches(), st.sampled_from(PARTITIONINGS))
def test_pruning_keeps_every_accepted_row(tree, batch, ps):
    everything = partitions(SCHEMA, ps)
    kept = prune(SCHEMA, ps, everything, tree)
    for number, accepted in zip(
        locate(SCHEMA, ps, batch).tolist(), truth(tree, batch), strict=True
    ):
        assert not accepted or number < 0 or everything[number] in kept


TEXTS = r"""
    and or not in between is null like true false date timestamp ( ) , = <> != < <= > >= + - s n d f
    b day 1 2.5 1e9 -0 'a' 'a%' '2024-01-01' x'00' "s" ' " \ % _ ; -- /* é
"""
WORDS = st.sampled_from([*TEXTS.split(), "\0", "\ud800"])


@given(st.lists(WORDS, max_size=12).map(" ".join) | st.text(max_size=30))
@example("n = 1e" + "9" * 60)
@example("not " * 2000)
@example("(" * 30_000)
@example("n in (" + "1," * 20_000)
@example("'" + "''" * 30_000)
@example('"' * 65_535)
def test_any_text_is_parsed_or_refused_with_position(text):
    refusal = tree = None
    try:
        tree = parse(text, SCHEMA)
    except (InvalidArgument, NotFound) as err:
        refusal = err
    if refusal is None:
        batch = pa.RecordBatch.from_pylist([dict.fromkeys(SCHEMA.by_name)], schema=SCHEMA.arrow)
        assert len(truth(tree, batch)) == 1
    else:
        assert 1 <= int(refusal.details["position"]) <= len(text) + 1
        assert len(refusal.message) < 1_000


@given(
    st.sampled_from(["n", "d"]),
    st.sampled_from(list(CompareOp)),
    st.integers(-3000, 3000),
    st.integers(0, 2),
)
def test_numbers_of_any_size_and_scale_compare_exactly(column, op, digits, scale):
    literal = Decimal(digits).scaleb(-scale)
    tree = parse(f"{column} {op.value} {literal}", SCHEMA)
    values = (
        [None, -128, -3, 0, 2, 127]
        if column == "n"
        else [None, Decimal("-99.9"), Decimal(0), Decimal("9.9")]
    )
    array = pa.array(values, SCHEMA.column(column).type)
    expected = [None if v is None else SIGNS[op](v, literal) for v in values]
    assert evaluate(tree, lambda _: array, len(values)).to_pylist() == expected
