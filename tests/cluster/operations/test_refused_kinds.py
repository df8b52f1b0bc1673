"""Each way to a table refuses a journal by name, and each way to a journal refuses a table."""

from collections.abc import Callable, Iterator

import pyarrow as pa
import pyarrow.flight
import pytest
from pyspark.sql.pandas.types import from_arrow_schema
from typer.testing import CliRunner

import nyala
from nyala.cli.main import app
from nyala.spark.source import NyalaSource
from nyala.testing import MiniCluster
from tests.waiting import wait_until

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string())])
A_JOURNAL = "'kinds_j' is a journal, not a table"
A_TABLE = "'kinds_t' is a table, not a journal"
OF_TABLES = {
    "add_column": ["w", "int64"], "add_range_partition": ["1", "2"], "column_remove_default": ["v"],
    "column_set_comment": ["v", "c"], "column_set_default": ["v", "x"], "delete_column": ["v"],
    "delete_rows": ["--where", "k = 1", "--yes"], "describe": [], "drop": ["--yes"],
    "drop_range_partition": ["1", "2"], "follow": ["--limit", "1"], "holds": [], "locate_row": ["1"],
    "rename_column": ["v", "w"], "rename_table": ["other"], "scan": [], "set_comment": ["c"],
    "set_extra_config": ["history_max_age_s", "60"], "set_owner": ["me"], "set_replication_factor": ["3"],
    "statistics": [], "update_rows": ["--set", "v='a'", "--where", "k = 1", "--yes"],
}  # fmt: skip
"""Verbs of `nyala table` with what follows the name."""
OF_JOURNALS = {
    "append": ["log", "data"], "delete": ["k", "--yes"], "delete-log": ["log", "--yes"], "describe": [],
    "drop": ["--yes"], "dump": [], "get": ["k"], "invalidate": ["log", "1", "--yes"], "keys": [],
    "logs": [], "read": ["log"], "set": ["k", "v"], "tail": ["log"], "verify": [],
}  # fmt: skip
"""Verbs of `nyala journal` with what follows the name."""
WITHOUT_A_NAME = {"list", "create", "recall"}


@pytest.fixture(scope="module")
def client(cluster: MiniCluster) -> Iterator[nyala.Client]:
    with cluster.connect() as made:
        made.create_table("kinds_t", SCHEMA, ["k"])
        made.create_journal("kinds_j").log("log").append(b"kept")
        yield made


def verbs(group: str) -> set[str]:
    """Return the names of the verbs of a group."""
    (found,) = [g for g in app.registered_groups if g.name == group]
    inner = found.typer_instance
    assert inner is not None
    all_of = [*inner.registered_commands]
    for shared in inner.registered_groups:
        if not shared.name and shared.typer_instance is not None:
            all_of += shared.typer_instance.registered_commands
    return {c.name for c in all_of if c.name}


@pytest.mark.parametrize(
    ("group", "known", "name", "says"),
    [("table", OF_TABLES, "kinds_j", A_JOURNAL), ("journal", OF_JOURNALS, "kinds_t", A_TABLE)],
)
def test_verbs_refuse_the_other_kind_by_name(cluster, client, group, known, name, says):
    assert verbs(group) == known.keys() | WITHOUT_A_NAME - (
        {"create"} if group == "table" else set()
    )
    answers = {}
    for verb, rest in known.items():
        words = [group, verb, name, *rest, "--masters", cluster.masters]
        result = CliRunner().invoke(app, words)
        answers[verb] = (result.exit_code, result.output)
    accepted = {v: a for v, a in answers.items() if a[0] == 0 or says not in a[1]}
    assert not accepted
    assert [e.data for e in client.journal("kinds_j").log("log").read()] == [b"kept"]


def test_sql_flight_and_spark_refuse_a_journal_by_name(cluster, client):
    masters = cluster.masters
    with pytest.raises(nyala.errors.InvalidArgument, match=A_JOURNAL):
        client.sql("select * from kinds_j").to_arrow()

    def answers(call: Callable[[pa.flight.FlightClient], object]) -> str:
        """Return the answer of the leader master to a request of Flight."""

        def asked() -> str | None:
            found = ""
            for address in masters.split(","):
                with pa.flight.connect(f"grpc://{address}") as flight:
                    try:
                        return repr(call(flight))
                    except (pa.ArrowInvalid, pa.flight.FlightError, OSError) as err:
                        found = str(err)
                        if "NOT_LEADER" not in found:
                            return found
            return None

        return wait_until(asked, "the leader master answers")

    path = pa.flight.FlightDescriptor.for_path("kinds_j")
    assert A_JOURNAL in answers(lambda flight: flight.get_flight_info(path))
    assert A_JOURNAL in answers(lambda flight: flight.get_schema(path))
    assert "kinds_j" not in answers(
        lambda flight: [f.descriptor.path for f in flight.list_flights()]
    )
    source = NyalaSource({"table": "kinds_j", "masters": masters})
    with pytest.raises(nyala.errors.InvalidArgument, match=A_JOURNAL):
        source.schema()
    with pytest.raises(nyala.errors.InvalidArgument, match=A_JOURNAL):
        source.writer(from_arrow_schema(SCHEMA), overwrite=False)
