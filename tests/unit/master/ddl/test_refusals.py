"""Every refusal of a definition states the problem, the reason and the remedy.

The table below has a line for each refusal; the last test finds each `raise` that no line reaches.
"""

import ast
import re
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import nyala
from nyala.client import checks
from nyala.client.alter import AlterSteps
from nyala.client.cluster.tablet_cache import OpenTable
from nyala.common import alteration, frames, types
from nyala.common import schema as schemas
from nyala.common.errors import AlreadyPresent, InvalidArgument, NotFound, NyalaError
from nyala.common.ids import ColumnId, TableId
from nyala.common.partitioning import partition_spec
from nyala.common.partitioning.partition import PartitionSchema
from nyala.common.schema import Column, Schema, from_arrow
from nyala.common.types import arrow_type
from nyala.common.values import python_values
from nyala.master.ddl import (
    alter_steps,
    alter_table,
    create_table,
    drop_table,
    kinds,
    placement,
    recall_table,
    replace_tablet,
    table_spec,
)
from nyala.wire.proto import nyala_pb2 as pb
from nyala.wire.values import value_to_ipc
from tests.unit.master.support import ddl_refused
from tests.unit.master.support.ddl_bad_input import BAD, Step, piece, with_others
from tests.unit.master.support.ddl_operations import plan_inputs, put
from tests.unit.master.support.master_create import broken, key

NEXT = (
    "add", "alter", "cast", "choose", "create", "cut", "discard", "drop", "give", "leave", "make",
    "name", "omit", "open", "pass", "recall", "remove", "say", "see", "shorten", "split", "start",
    "swap", "take", "use", "write", "watch",
)  # fmt: skip
"""First words of the last clause of a refusal, which states the remedy or lists the choices."""
LISTS = ("the columns are: ", "the key columns are: ", "the tables are: ", "the options are: ")
REFUSED = ("InvalidArgument", "AlreadyPresent", "NotFound")
ARROW = pa.schema([("k", pa.int64()), ("v", pa.string())])
TEXT = pa.string()
MADE = from_arrow(ARROW, ["k"], defaults={"v": "x"})
OPENED = OpenTable(TableId("i" * 32), "t", MADE, PartitionSchema(), 3, {})


def shape(key: Any = ("k",), columns: Any = ARROW, **more: Any) -> Callable[[], object]:
    return lambda: from_arrow(pa.schema(columns), key, **more)


def cut(spec: Any) -> Callable[[], object]:
    return lambda: partition_spec.resolve(spec, MADE)


def hashed(*levels: Any) -> Callable[[], object]:
    return cut(nyala.Partition(hash=list(levels)))


def ranged(*bounds: Any, columns: Any = ("k",)) -> Callable[[], object]:
    return cut(nyala.Partition(range=nyala.Range(columns, list(bounds))))


def altered(*steps: Any) -> Callable[[], object]:
    return lambda: alteration.alter(MADE, steps)


def follows(**changed: Any) -> Callable[[], object]:
    """A schema that no alteration produces."""
    parts = {"columns": MADE.columns, "key_ids": MADE.key_ids, "version": 1, "next_column_id": 2}
    return lambda: alteration.check_successor(MADE, Schema(**{**parts, **changed}))


def column(number: int, name: str = "v", kind: Any = TEXT, **more: Any) -> Column:
    return Column(ColumnId(number), name, kind, **{"nullable": True, "default": None, **more})


def create(**changed: Any) -> Callable[[], object]:
    return lambda: kinds.rules_of(0).checked(broken(**changed).table, 3, 100)


def on_master(operation: Callable[..., Any], request: Any, *more: Any) -> Callable[[], object]:
    def ask() -> object:
        catalog = with_others()
        made = operation(request, *more)
        return put(catalog, made)

    return ask


def recall_of_what_is_there() -> object:
    catalog = with_others()
    request = pb.RecallTableRequest(id=catalog.require("t").id)
    return put(catalog, recall_table.operation(request))


def drop_twice() -> object:
    catalog = with_others()
    table = catalog.require("t")
    drop = pb.DropTableRequest(id=table.id, reserve_seconds=60)
    put(catalog, drop_table.operation(drop, 7))
    return put(catalog, drop_table.operation(drop, 8))


def journal(**changed: Any) -> Callable[[], object]:
    """Create a journal of this definition."""
    spec = {"name": "new", "kind": 1, "replicas": 3, **changed}
    request = pb.CreateTableRequest(table=pb.TableSpec(**spec))
    return lambda: put(with_others(), create_table.operation(request, plan_inputs()))


def lost_journal() -> object:
    catalog = with_others()
    (tablet,) = catalog.tablets_of(catalog.require("ops").id)
    request = pb.ReplaceTabletRequest(tablet_id=tablet.id)
    return put(catalog, replace_tablet.unsafe(request, plan_inputs(), [], 7))


def about(rules: Any, request: Any, now_us: int = 0) -> Callable[[], object]:
    """Alter or drop something."""
    more = now_us or plan_inputs()
    return lambda: put(with_others(), rules.operation(request, more))


def steps(call: Callable[[AlterSteps], object]) -> Callable[[], object]:
    return lambda: call(AlterSteps(OPENED))


def sent(request: pb.CreateTableRequest) -> pb.CreateTableRequest:
    """Return the request with an unused name, where its name is not the problem."""
    made = pb.CreateTableRequest()
    made.CopyFrom(request)
    made.table.name = "new" if made.table.name == "t" else made.table.name
    return made


ANY: Any = nyala
"""The public functions, called with arguments of wrong types."""
K = MADE.columns[0]
V = MADE.columns[1]
READ = {"read_default": pa.scalar(None, pa.string())}
USERS: list[tuple[Callable[[], object], str, str]] = [
    # call, text of the refusal, reason in the refusal
    (lambda: checks.check_replicas("3"), "replicas='3'", "an odd number"),
    (lambda: checks.check_int("batch_rows", 0, 1), "batch_rows=0", "whole number from 1 on"),
    (lambda: checks.check_timeout("1 s"), "timeout_ms='1 s'", "number of milliseconds"),
    (lambda: checks.check_text("name", None), "name=None", "not a text"),
    (lambda: checks.check_list("primary_key", 5), "primary_key=5", "not a list"),
    (lambda: checks.check_age("max_age_ms", -1), "max_age_ms=-1", "from 0 on"),
    (lambda: checks.check_reserve(-1), "reserve_seconds=-1", "a number of seconds"),
    (lambda: frames.definition_of({"k": "int64"}, ["k"]), "dict", "takes an Arrow schema"),
    (lambda: frames.definition_of([{"k": 1}, 5], ["k"]), "row 1", "not a dict"),
    (lambda: frames.definition_of([{5: 1}], ["k"]), "row 0", "name is a str"),
    (lambda: frames.definition_of([{"k": 1}, {"k": "a"}], ["k"]), "'k'", "mixes integer and string"),
    (lambda: frames.definition_of(pd.DataFrame({"k": [object()]}), ["k"]), "schema=", "cannot be read"),
    (lambda: frames.definition_of(pa.table({"k": [1], "v": pa.nulls(1)}), ["k"]), "'v'", "unknown"),
    (lambda: frames.definition_of(pd.DataFrame({"k": [1]}), ["k"], index=True), "level 0", "has no name"),
    (lambda: frames.definition_of([{"k": 1}], ["k"], index=True), "index=True", "has no index"),
    (lambda: frames.definition_of(pa.table({"k": pa.array([1], pa.uint64())}), ["k"]), "'k'", "uint64"),
    (lambda: frames.definition_of(iter([{"k": 1}]), ["k"]), "schema=", "to its end"),
    (lambda: frames.definition_of(pl.LazyFrame({"k": [1]}), ["k"]), "LazyFrame", "is a query"),
    (lambda: frames.definition_of(pa.table([[1], [1]], ["k", "k"]), ["k"]), "'k'", "named twice"),
    (shape(defaults={"v": "\ud800"}), "of column 'v'", "is not a valid string"),
    (steps(lambda s: s.set_replicas(0)), "replicas=0", "an odd number"),
    (steps(lambda s: s.add_range(1, 2)), "'t'", "not partitioned by range"),
    (shape("k"), "primary_key='k'", "a key is a list"),
    (shape([]), "primary key", "none was given"),
    (shape(["k", "k"]), "'k'", "named twice"),
    (shape(["x"]), "'x'", "no column"),
    (shape([0]), "0 is not a column name", "names are str"),
    (shape(columns=[("k", pa.float64())]), "'k' of type double", "do not identify rows"),
    (shape(defaults={"k": 1}), "key column 'k'", "every row gives its key"),
    (shape(defaults={"v": 1.5}), "default 1.5 of column 'v'", "is not a valid string"),
    (shape(defaults={"v": pa.scalar(None, pa.string())}), "of column 'v' is null", "give a value"),
    (shape(defaults={"v": "x" * 2000}), "'v' has 2000 bytes", "at most 1024"),
    (shape(columns=[("k", pa.int64()), ("l", pa.list_(pa.int64()))]), "list<", "not supported"),
    (shape(columns=[("k", pa.int64()), ("_op", pa.int64())]), "'_op'", "nyala's own columns"),
    (shape(columns=[("k", pa.int64()), ("a\n", pa.int64())]), r"'a\n'", "unprintable characters"),
    (shape(columns=[("k", pa.int64())] + [(f"c{n}", pa.int8()) for n in range(1000)]),
     "1001 columns", "at most 1000"),
    (lambda: schemas.check_column_name("a\ud800"), r"'a\ud800'", "is not valid Unicode"),
    (lambda: arrow_type("int65"), "'int65'", "unknown column type"),
    (lambda: types.type_name(pa.uint64()), "uint64", "not supported"),
    (cut(nyala.Hash(["k"], 4)), "not Hash", "takes nyala.Partition"),
    (cut(ANY.Partition(hash=nyala.Hash(["k"], 4))), "hash=", "takes a list"),
    (cut(ANY.Partition(range=3)), "not int", "takes nyala.Range"),
    (hashed("k"), "not str", "takes nyala.Hash"),
    (hashed(nyala.Hash(["k"], 4), nyala.Hash(["k"], 4)), "'k'", "two hash levels"),
    (hashed(ANY.Hash(["k"], "4")), "not str", "are an int"),
    (hashed(nyala.Hash(["k"], 1)), "1 buckets", "2 to 1024"),
    (hashed(nyala.Hash("k", 4)), "not 'k'", "a list"),
    (hashed(ANY.Hash([3], 4)), "not int", "column names"),
    (hashed(nyala.Hash(["x"], 4)), "'x'", "no column"),
    (hashed(nyala.Hash(["v"], 4)), "'v'", "not in the primary key"),
    (hashed(nyala.Hash(["k", "k"], 4)), "'k'", "named twice"),
    (ranged(), "Range(k)", "no tablet would hold a row"),
    (ranged(*[(n, n + 1) for n in range(10_001)]), "10001 ranges", "at most 10000"),
    (cut(nyala.Partition([nyala.Hash(["k"], 1024)], nyala.Range(["k"], [(n, n + 1) for n in range(10)]))),
     "10240 partitions", "at most 10000"),
    (ranged(5), "not 5", "a pair"),
    (ranged((5, 5)), "5", "is empty"),
    (ranged((1, 5), (4, 9)), "[4, 9)", "one range only"),
    (ranged(((1, 2), None)), "2 values for 1 columns", "k"),
    (ranged(((None,), 3)), "'k'", "cannot be open"),
    (ranged(("x", None)), "'x'", "is not a valid int64"),
    (ranged((object(), None)), "object", "is not a valid int64"),
    (altered(), "an alteration", "has none"),
    (altered(alteration.AddColumn("n", pa.int8(), False)), "'n'", "not nullable"),
    (altered(alteration.AddColumn("v", pa.int8())), "'v'", "already"),
    (altered(alteration.DropColumn("k")), "'k'", "part of the primary key"),
    (altered(alteration.DropColumn("x")), "'x'", "no column"),
    (altered(*(alteration.AddColumn(f"c{n}", pa.int8()) for n in range(999))), "1001 columns", "at most"),
    (altered(alteration.SetComment("v", "x" * 1025)), "'v'", "1024 bytes"),
    (drop_twice, "'t'", "was dropped already"),
    (recall_of_what_is_there, "'t'", "is there"),
    (create(options={"witness_first": "maybe"}), "'maybe'", "on or off"),
    (create(comment="x" * 70_000), "the comment", "65536 bytes"),
    (create(partition__hash=[pb.HashLevel(column_ids=[0], buckets=2)] * 9), "9 hash levels", "at most 8"),
    (lambda: create_table.place_all(with_others(), plan_inputs(), 1, 5), "5 replicas", "3 are live"),
    (journal(schema=pb.Schema(columns=[pb.Column(name="c")])), "'new'", "a journal has logs and keys"),
    (journal(partition=pb.PartitionSchema(hash=[pb.HashLevel(buckets=2)])), "'new'", "one tablet"),
    (journal(options={"journal_bytes": "much"}), "'much'", "whole number of bytes"),
    (journal(options={"compression": "lz4"}), "journal option 'compression'", "are: journal_bytes"),
    (journal(replicas=2), "2 replicas", "a journal has an odd number"),
    (lambda: kinds.rules_of(7), "kind 7", "0 (table) and 1 (journal)"),
    (lost_journal, "the whole journal 'ops'", "loses every entry and key"),
    (about(alter_table, pb.AlterTableRequest(name="ops", steps=[pb.AlterStep(owner="x")])),
     "'ops' is a journal, not a table", "client.journal('ops')"),
    (about(alter_table, pb.AlterTableRequest(name="t", kind=1, steps=[pb.AlterStep(owner="x")])),
     "'t' is a table, not a journal", "client.table('t')"),
    (about(alter_table, pb.AlterTableRequest(name="ops", kind=1, steps=[pb.AlterStep(drop_column="c")])),
     "drop_column", "neither columns nor ranges"),
    (about(drop_table, pb.DropTableRequest(name="ops"), 7), "'ops' is a journal", "client.drop_journal"),
    (about(drop_table, pb.DropTableRequest(name="t", kind=1), 7), "'t' is a table", "client.drop_table('t')"),
]  # fmt: skip
HOSTILE: list[tuple[Callable[[], object], str]] = [
    # request that nyala's client never sends, and text of the refusal
    (follows(columns=(K, K)), "twice"),
    (follows(key_ids=(1,)), "not the first"),
    (follows(key_ids=(0, 1)), "is nullable or has a default"),
    (follows(next_column_id=1), "not above"),
    (follows(columns=(column(0, "k", pa.int64()), V)), "nullable"),
    (follows(columns=(K, column(1, default=pa.scalar(1)))), "of type int64"),
    (follows(version=0), "does not come after"),
    (follows(columns=(K, column(1, nullable=False))), "allows nulls"),
    (follows(columns=(K, column(1, immutable=True))), "immutable"),
    (follows(columns=(K, column(1, kind=pa.int8()))), "change its type"),
    (follows(columns=(K, column(2, "n")), next_column_id=3), "no value in older rows"),
    (lambda: alteration.check_successor(
        Schema((K,), MADE.key_ids, 0, 2), Schema((K, column(1)), MADE.key_ids, 1, 2)), "used before"),
    (lambda: alteration.check_successor(
        Schema((K, V), (ColumnId(0),), 0, 2),
        Schema((K, column(1, "v", nullable=False)), (ColumnId(0), ColumnId(1)), 1, 2)), "would become"),
]  # fmt: skip
TWO_LEVELS = [pb.HashLevel(column_ids=[0], buckets=2)] * 2
OVERLAPPING = [piece(key(0), key(5)), piece(key(4), key(9))]
CREATED: list[tuple[pb.CreateTableRequest, str]] = [
    *((r, text) for what, (r, text) in ddl_refused.CREATE.items() if what != "the name of another"),
    (broken(name="plain"), "exists already"),
    (broken(schema__columns__1__id=7, schema__next_column_id=8), "in order"),
    (
        broken(schema__columns__1__read_default_ipc=value_to_ipc(pa.scalar(""))),
        "older than a column",
    ),
    (broken(schema__version=4), "schema version 0"),
    (
        pb.CreateTableRequest(table=pb.TableSpec(name="j", kind=1, schema=pb.Schema(version=4))),
        "a new journal has version 0, not 4",
    ),
    (broken(partition__version=9), "partition version 9"),
    (broken(partition__hash=TWO_LEVELS), "two hash levels"),
    (broken(partition__hash=[pb.HashLevel(column_ids=[1], buckets=2)]), "distinct key columns"),
    (broken(partition__ranges=[pb.RangePartition()]), "without range columns"),
    (broken(partition__range_column_ids=[0], partition__ranges=OVERLAPPING), "overlap"),
]
SENT: list[tuple[Callable[[], object], str]] = [
    (on_master(drop_table.operation, pb.DropTableRequest(id="x"), 7), "no table has the id"),
    *((on_master(alter_table.operation, pb.AlterTableRequest(name="t", steps=bad), plan_inputs()), text)
      for bad, text in BAD.values() if "damaged" not in text and text != "."),
    *((on_master(drop_table.operation, request, 7), text)
      for request, text in ddl_refused.DROP.values()),
    *((on_master(recall_table.operation, request), text)
      for request, text in ddl_refused.RECALL.values()),
    *((on_master(create_table.operation, sent(request), plan_inputs()), text)
      for request, text in CREATED),
    (on_master(alter_table.operation,
               pb.AlterTableRequest(name="plain", steps=[Step(add_range=piece(None, None))]), plan_inputs()),
     "not partitioned by range"),
    (on_master(alter_table.operation, pb.AlterTableRequest(steps=[Step(owner="x")]), plan_inputs()),
     "one of"),
]  # fmt: skip
MODULES = (
    checks, schemas, types, frames, python_values, partition_spec, alteration, table_spec, alter_steps,
    alter_table, create_table, drop_table, recall_table, placement, kinds,
)  # fmt: skip


def refusal(ask: Callable[[], object]) -> NyalaError:
    with pytest.raises((InvalidArgument, AlreadyPresent, NotFound)) as raised:
        ask()
    return raised.value


def next_step(message: str) -> str:
    """Return the remedy of a refusal; empty: none."""
    for begins in LISTS:
        if (at := message.find(begins)) > 0:
            return message[at:]
    step = message.rpartition("; ")[2]
    return step if step.split(" ")[0].rstrip(":") in NEXT else ""


@pytest.mark.row("S0.55")
@pytest.mark.parametrize("number", range(len(USERS)))
def test_refusal_states_problem_reason_and_remedy(number):
    ask, what, why = USERS[number]
    message = refusal(ask).message
    assert what in message
    assert why in message
    assert next_step(message), message


def test_refusal_of_malformed_client_requests_has_a_message():
    for ask, text in HOSTILE:
        message = refusal(ask).message
        assert text in message
        assert next_step(message), message


def test_master_refusal_states_a_remedy():
    for ask, text in SENT:
        message = refusal(ask).message
        assert re.search(text, message), message
        assert next_step(message), message


def test_refusal_table_lists_every_refusal():
    reached = set()
    asked = [ask for ask, *_ in USERS] + [ask for ask, _ in (*HOSTILE, *SENT)]
    for ask in asked:
        for frame in traceback.extract_tb(refusal(ask).__traceback__):
            reached.add((frame.filename, frame.lineno))
    missing = []
    for module in MODULES:
        path = Path(str(module.__file__))
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Raise) and _name(node) in REFUSED:
                lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
                if not any((str(path), line) in reached for line in lines):
                    missing.append(f"{path.name}:{node.lineno}: {ast.unparse(node)[:120]}")
    assert not missing, "\n".join(missing)


def _name(node: ast.Raise) -> str:
    called = node.exc.func if isinstance(node.exc, ast.Call) else None
    return called.id if isinstance(called, ast.Name) else ""
