"""Hostile conditions: what grants see of their columns is at least what the tablets read."""

import random
from typing import Any

import pyarrow as pa
import pytest

from nyala.common import schema as schemas
from nyala.common.errors import NyalaError
from nyala.common.expressions import predicate as predicates
from nyala.common.expressions.where import parse
from nyala.wire.convert import predicate_from_proto, predicate_to_proto
from nyala.wire.proto import nyala_pb2 as pb
from nyala.wire.tls.tables_of import columns_of
from tests.properties.hostile.requests import SEED, requests_of

SCHEMA = schemas.from_arrow(
    pa.schema([("k", pa.int64()), ("s", pa.string()), ("n", pa.int64()), ("g", pa.float64())]),
    ["k"],
)
TEXTS = (
    "n > 3", "n + g > 1 and not (s like 'a%')", "s in ('a', 'b') or k is null", "k between n and g",
    "s || s = 'aa'", "s ilike '%a' or g is null", "n = 1",
)  # fmt: skip


def crossed(rng: random.Random, nodes: list[pb.Predicate]) -> pb.Predicate:
    """Return a node with fields of several nodes."""
    made = pb.Predicate()
    made.CopyFrom(rng.choice(nodes))
    for field in made.DESCRIPTOR.fields:
        other: Any = rng.choice(nodes)
        if rng.random() < 0.4 and not field.is_repeated:
            taken = pb.Predicate()
            taken.CopyFrom(other)
            for name in [f.name for f in made.DESCRIPTOR.fields if f.name != field.name]:
                taken.ClearField(name)  # type: ignore[arg-type]  # a name of the message
            made.MergeFrom(taken)
    return made


def nodes_of(tree: pb.Predicate) -> list[pb.Predicate]:
    return [tree, *(n for child in tree.children for n in nodes_of(child))]


@pytest.mark.parametrize("seed", range(3))
def test_columns_that_grants_see_include_all_that_are_read(seed):
    rng = random.Random(SEED + seed)
    good = [predicate_to_proto(parse(text, SCHEMA)) for text in TEXTS]
    nodes = [node for tree in good for node in nodes_of(tree)]
    inputs = [crossed(rng, nodes) for _ in range(700)]
    inputs += list(requests_of(rng, pb.Predicate, 300, (), (0, 1, 2, 3, 4), good))
    read = 0
    for message in inputs:
        try:
            tree = predicate_from_proto(message, SCHEMA)
        except NyalaError:
            continue
        read += 1
        assert {int(c) for c in predicates.columns_of(tree)} <= columns_of(message), message
    assert read > 150
