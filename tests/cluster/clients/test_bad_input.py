"""Bad input of any kind gets a clear error and changes nothing, and no server process dies of it."""

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from nyala.client import Client, Table
from nyala.common.errors import (
    InvalidArgument,
    NotFound,
    NyalaError,
    SchemaMismatch,
    SessionExpired,
    TooLarge,
)
from nyala.common.partition import locate
from nyala.common.partition_spec import Hash, Partition, Range
from nyala.testing import MiniCluster
from nyala.wire import flight, methods
from nyala.wire.flight import FlightData
from nyala.wire.proto import flight_pb2
from nyala.wire.proto import nyala_pb2 as pb
from tests.cluster.support.direct import Direct, mutations, raw_call, refusal
from tests.waiting import wait_until

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string()), ("x", pa.float64())])
PARTITION = Partition(hash=[Hash(["k"], 2)], range=Range(["k"], [(0, 1000)]))
ROWS = [{"k": n, "v": f"row {n}", "x": n / 2} for n in range(100)]


@pytest.fixture(scope="module")
def client(cluster) -> Iterator[Client]:
    with cluster.connect() as made:
        made.create_table("bad", SCHEMA, ["k"], PARTITION).insert(ROWS).raise_for_errors()
        yield made


@pytest.fixture(scope="module")
def table(client) -> Table:
    opened: Table = client.table("bad")
    return opened


@pytest.fixture(scope="module")
def direct() -> Iterator[Direct]:
    with Direct() as made:
        yield made


@pytest.fixture(autouse=True)
def nothing_changed(cluster, client, table, direct) -> Iterator[None]:
    """After each test: every server lives on, with the incarnation that it had, and the data is as it was."""
    before = incarnations(cluster, direct)
    yield
    assert incarnations(cluster, direct) == before
    assert sorted(table.scan().to_arrow().to_pylist(), key=lambda r: r["k"]) == ROWS
    wait_until(
        lambda: all_run(cluster, direct), "replicas that others left half-made run or are gone"
    )


def all_run(cluster: MiniCluster, direct: Direct) -> bool:
    """Whether all replicas run or are tombstones; none may ever have failed."""
    answer = [
        direct.ask(cluster.address(n), methods.LIST_TABLETS, pb.ListTabletsRequest())
        for n in cluster.names
        if n.startswith("tserver")
    ]
    states = {t.report.state for a in answer for t in a.tablets}
    assert "FAILED" not in states
    return states <= {"RUNNING", "TOMBSTONED"}


def incarnations(cluster: MiniCluster, direct: Direct) -> dict[str, int]:
    """Return each server's incarnation: another one means that its process was another."""
    return {
        n: direct.ask(cluster.address(n), methods.SERVER_INFO, pb.ServerInfoRequest()).incarnation
        for n in cluster.names
    }


# ---- through the client -----------------------------------------------------------------------------


def test_unknown_names(client, table):
    with pytest.raises(NotFound, match=r"no table 'nothing'; the tables are: .*bad"):
        client.table("nothing")
    with pytest.raises(NotFound, match="nothing"):
        client.drop_table("nothing")
    with pytest.raises(NotFound, match="w"):
        table.scan(["k", "w"])
    with pytest.raises(SchemaMismatch, match="w"):
        table.upsert([{"k": 1, "w": 2}])
    with pytest.raises(NotFound, match="w"):
        table.scan(where="w = 3")
    with pytest.raises(NotFound, match="no table 'nothing'"):
        client.sql("select * from nothing")


def test_types_and_values_that_do_not_fit(table):
    for wrong in (
        [{"k": "one", "v": "x"}],
        [{"k": 1.5, "v": "x"}],
        [{"k": 1, "x": "a float"}],
        [{"v": "no key"}],
        pa.table({"k": pa.array([2**63], pa.uint64()), "v": ["x"]}),
        pa.table({"k": [1], "v": [b"\xff\xfe"]}),
        pa.table({"k": [1], "x": [[1.0]]}),
        [],
    ):
        refused = refusal(lambda w=wrong: table.upsert(w).rows)
        assert refused in ("SCHEMA_MISMATCH", "INVALID_ARGUMENT", "0"), (wrong, refused)
    for wrong in (7, None, "rows", [1, 2], {"k": 1}):
        assert refusal(table.upsert, wrong) in ("INVALID_ARGUMENT", "SCHEMA_MISMATCH"), wrong


def test_rows_that_cannot_be_are_row_errors(table):
    result = table.insert(pa.table({"k": [5, None, 5000, 6], "v": ["a", "b", "c", "d"]}))
    codes = dict(zip(*(result.errors.column(n).to_pylist() for n in ("row", "code")), strict=True))
    assert codes == {0: "already_present", 1: "null_key", 2: "no_partition", 3: "already_present"}
    assert result.rows == 0
    assert table.update([{"k": 900, "v": "x"}]).errors.column("code").to_pylist() == ["not_found"]
    assert table.delete([{"k": 901}]).errors.column("code").to_pylist() == ["not_found"]
    mixed = [{"k": 902, "v": "x", "_op": "insert"}, {"k": 5, "v": "y", "_op": "insert"}]
    voided = table.write([mixed[1]], all_or_nothing=True)
    assert voided.errors.column("code").to_pylist() == ["already_present"]
    for op in ("explode", None, ""):
        with pytest.raises(InvalidArgument, match="ops are:"):
            table.write([{"k": 1, "_op": op}])


def test_definitions_that_cannot_be(client):
    key = ["k"]
    cases = {
        "bad": ("ALREADY_PRESENT", (SCHEMA, key)),
        "": ("INVALID_ARGUMENT", (SCHEMA, key)),
        "a\x00b": ("INVALID_ARGUMENT", (SCHEMA, key)),
        "x" * 2000: ("INVALID_ARGUMENT", (SCHEMA, key)),
        "t1": ("INVALID_ARGUMENT", (SCHEMA, [])),
        "t2": ("INVALID_ARGUMENT", (SCHEMA, ["w"])),
        "t3": ("INVALID_ARGUMENT", (SCHEMA, ["x"])),
        "t4": ("INVALID_ARGUMENT", (SCHEMA, key, None, 2)),
        "t5": ("INVALID_ARGUMENT", (SCHEMA, key, None, 5)),
        "t6": ("INVALID_ARGUMENT", (SCHEMA, key, None, 0)),
        "t7": ("INVALID_ARGUMENT", (SCHEMA, key, Partition(hash=[Hash(["v"], 4)]))),
        "t8": ("INVALID_ARGUMENT", (SCHEMA, key, Partition(hash=[Hash(["k"], 100_000)]))),
        "t9": (
            "INVALID_ARGUMENT",
            (pa.schema([("k", pa.int64()), ("l", pa.list_(pa.int8()))]), key),
        ),
    }
    for name, (expected, words) in cases.items():
        code = refusal(lambda n=name, w=words: client.create_table(n, *w))
        assert code == expected, (name[:20], code)
    with pytest.raises(NyalaError):
        client.create_table("t10", SCHEMA, key, options={"no_such_option": "1"})
    assert [n for n in client.tables() if n.startswith(("t1", "t2", "x"))] == []


HOSTILE = (
    "", " ", "k", "k =", "= 3", "k = 3 or", "k = 'three'", "k = 3; drop table bad", "k = 3 -- '",
    "__import__('os').system('true')", "k in ()", "k in (" + "1," * 200_000 + "1)", "(" * 5_000,
    "not " * 5_000 + "k = 1", " or ".join(["k = 1"] * 20_000), "v like '%x'", "v like '", "k = 1e999",
    "k = 99999999999999999999999", "v = 'a\x00b'", "k between 1", "k = k", "x = nan", "\ud800 = 1",
    "k = 1 \N{RIGHT-TO-LEFT OVERRIDE} or 1=1", '"k', "k ~ 3", "k is", "case when k then 1 end",
)  # fmt: skip


@pytest.mark.parametrize("where", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_where_texts(table, where):
    """An error of the tree with a position, or rows; never anything else, and never after long."""
    answer = refusal(lambda: table.scan(["k"], where=where).to_arrow().num_rows)
    assert answer in ("INVALID_ARGUMENT", "NOT_FOUND", "TOO_LARGE") or answer.isdigit(), answer


def test_other_arguments_that_cannot_be(client, table):
    calls: list[Callable[[], Any]] = [
        lambda: table.scan(limit=0),
        lambda: table.scan(mode="sometime"),
        lambda: table.scan(at=1, mode="latest"),
        lambda: table.scan([]),
        lambda: table.scan(["k", "k"]),
        lambda: table.get({"k": None}),
        lambda: table.get({"v": 1}),
        lambda: table.changes(since=5, until=3),
        lambda: client.sql("drop table bad"),
        lambda: client.sql("select 1; select 2"),
        lambda: client.sql("select * from read_csv('/etc/passwd')"),
        lambda: client.sql("copy (select 1) to '/tmp/nyala-should-not-exist'"),
        lambda: table.scan(at=(1 << 63)).to_arrow(),
    ]
    answers = [refusal(call) for call in calls]
    codes = {"INVALID_ARGUMENT", "NOT_FOUND", "HISTORY_GONE", "SCHEMA_MISMATCH"}
    assert [(n, a) for n, a in enumerate(answers) if a not in codes] == []


def test_a_batch_over_the_limit_is_refused(cluster, client, table):
    with pytest.raises((TooLarge, SchemaMismatch), match=r"limit|write_max_bytes|too"):
        table.upsert([{"k": 1, "v": "x" * (20 << 20)}])


# ---- past the client --------------------------------------------------------------------------------


class Batches:
    """Makes batches as the client does, and lets each part be wrong."""

    def __init__(self, client: Client, table: Table) -> None:
        self.places = table.tablets()
        self.definition = table.definition
        self.schema = pa.schema([("k", pa.int64()), ("v", pa.string()), ("x", pa.float64())])
        partition = client.describe("bad").partition
        keys = list(range(1, 20))
        batch = pa.record_batch([keys, ["w"] * 19, [0.0] * 19], schema=self.schema)
        numbers = locate(self.definition, partition, batch)
        self.place = self.places[int(numbers[0])]
        self.other = self.places[1 - int(numbers[0])]
        self.mine = batch.filter(pa.array(numbers == numbers[0]))
        self.foreign = batch.filter(pa.array(numbers != numbers[0]))
        self.address = self.place.leader or ""

    def header(self, **wrong: Any) -> pb.WriteHeader:
        values: dict[str, Any] = {
            "tablet_id": self.place.id, "schema_version": self.definition.version, "op": pb.INSERT,
            "client_id": uuid.uuid4().bytes, "sequence": 1, "first_outstanding": 1,
            "column_ids": [c.id for c in self.definition.columns], "timeout_ms": 5_000, "request": 9,
        }  # fmt: skip
        return pb.WriteHeader(**(values | wrong))

    def message(self, batch: pa.RecordBatch, **wrong: object) -> FlightData:
        return flight.batch_data(batch, self.header(**wrong).SerializeToString())


@pytest.fixture
def batches(client, table) -> Batches:
    return Batches(client, table)


def put(direct: Direct, batches: Batches, data: FlightData, schema: pa.Schema | None = None) -> str:
    """Send one message; return the code of its refusal."""
    try:
        (result,) = direct.put(batches.address, schema or batches.schema, [data])
    except NyalaError as err:
        return err.code
    return result.error.code or f"took {result.rows} rows, {len(result.row_errors)} errors"


def test_headers_that_cannot_be(direct, batches):
    mine = batches.mine
    ids = [c.id for c in batches.definition.columns]
    for wrong, expected in (
        ({"client_id": b"short"}, "INVALID_ARGUMENT"),
        ({"client_id": b""}, "INVALID_ARGUMENT"),
        ({"sequence": 0, "first_outstanding": 0}, "INVALID_ARGUMENT"),
        ({"sequence": 3, "first_outstanding": 4}, "INVALID_ARGUMENT"),
        ({"sequence": (1 << 64) - 1}, "INVALID_ARGUMENT"),
        ({"schema_version": 99}, "UNAVAILABLE"),  # this replica may be about to learn of it
        ({"column_ids": ids[:2]}, "SCHEMA_MISMATCH"),
        ({"column_ids": [ids[0], ids[0], ids[1]]}, "SCHEMA_MISMATCH"),
        ({"column_ids": [*ids[:2], 4_000_000]}, "SCHEMA_MISMATCH"),
        ({"column_ids": ids[1:]}, "SCHEMA_MISMATCH"),
        ({"op": pb.WRITE_OP_UNSPECIFIED}, "INVALID_ARGUMENT"),
        ({"op": pb.MIXED}, "SCHEMA_MISMATCH"),
        ({"tablet_id": "0" * 32}, "UNAVAILABLE"),
        ({"tablet_id": "../../etc"}, "UNAVAILABLE"),
        ({"tablet_id": ""}, "INVALID_ARGUMENT"),
        ({"tablet_id": "sys-catalog"}, "UNAVAILABLE"),
        ({"propagated_time": (1 << 64) - 1}, f"took 0 rows, {mine.num_rows} errors"),
    ):
        assert put(direct, batches, batches.message(mine, **wrong)) == expected, wrong


def test_rows_of_another_tablet_are_refused(direct, batches):
    assert put(direct, batches, batches.message(batches.foreign)) == "INVALID_ARGUMENT"
    both = pa.concat_batches([batches.mine, batches.foreign])
    assert put(direct, batches, batches.message(both)) == "INVALID_ARGUMENT"
    uncovered = pa.record_batch([[-5], ["w"], [0.0]], schema=batches.schema)
    assert put(direct, batches, batches.message(uncovered)) == "INVALID_ARGUMENT"


def test_unknown_op_codes_in_a_mixed_batch_are_refused(direct, batches):
    mine = batches.mine
    for codes in ([0], [9], [15], [255], [None]):
        wide = mine.append_column("_op", pa.array(codes * mine.num_rows, pa.uint8()))
        code = put(direct, batches, batches.message(wide, op=pb.MIXED), wide.schema)
        assert code == "INVALID_ARGUMENT", codes


def test_streams_of_another_shape_are_refused(direct, batches):
    names = batches.mine.schema.names
    wide = pa.record_batch([[1], ["w"], [1]], names=names)
    assert put(direct, batches, batches.message(wide), wide.schema) == "SCHEMA_MISMATCH"
    narrow = batches.mine.select(["k"])
    assert put(direct, batches, batches.message(narrow), narrow.schema) == "SCHEMA_MISMATCH"
    # A stream's schema says one thing, its batch another: its buffers are checked, not believed.
    for false in ([[1], [7], [1.0]], [[1], ["w"], ["x"]], [[1], ["w"], [True]]):
        assert (
            put(direct, batches, batches.message(pa.record_batch(false, names=names))) != "INTERNAL"
        )
    dictionary = pa.record_batch([[1], pa.array(["w"]).dictionary_encode(), [1.0]], names=names)
    with pytest.raises(InvalidArgument, match="dictionary"):
        flight.batch_data(dictionary)
    assert put(direct, batches, FlightData(b"", None, b"")) == "INVALID_ARGUMENT"


def test_a_message_over_the_limit_is_refused_unread(direct, batches):
    big = pa.record_batch([[1], ["x" * (17 << 20)], [0.0]], schema=batches.schema)
    assert put(direct, batches, batches.message(big)) == "TOO_LARGE"
    near = pa.record_batch([[1], ["x" * (16 << 20)], [0.0]], schema=batches.schema)
    assert put(direct, batches, batches.message(near)) == "TOO_LARGE"


@pytest.mark.parametrize("seed", range(6))
def test_damaged_arrow_bytes(direct, batches, seed):
    """A hundred damaged batches a seed, in one stream each: refused, or read as rows that exist."""
    header, body = (bytes(p) for p in flight.batch_parts(batches.mine))
    whole = len(header)
    for damaged in mutations(header + body, seed, 100):
        cut = min(whole, len(damaged))
        message = FlightData(
            damaged[:cut], damaged[cut:], batches.header(op=pb.UPDATE_IGNORE).SerializeToString()
        )
        code = put(direct, batches, no_effect(message, batches))
        assert code in ("INVALID_ARGUMENT", "SCHEMA_MISMATCH", "TOO_LARGE") or "took" in code, code


def no_effect(message: FlightData, batches: Batches) -> FlightData:
    """Return the message as an insert of keys that may exist or not, voided as a whole by one that does.

    A flipped bit in a value is still a batch; with all_or_nothing and keys that are there it has no effect.
    """
    header = batches.header(op=pb.INSERT, all_or_nothing=True)
    return FlightData(message.header, message.body, header.SerializeToString())


@pytest.mark.parametrize("seed", range(2))
def test_damaged_frames_past_all_codecs(batches, seed):
    """Whole FlightData messages, damaged: field numbers, lengths, metadata and all."""
    path = "/" + methods.DO_PUT.path
    schema = flight.encode(flight.schema_data(batches.schema))
    whole = flight.encode(batches.message(batches.mine, all_or_nothing=True))
    for damaged in mutations(whole, seed, 60):
        assert raw_call(batches.address, path, [schema, damaged], streams=True)
    for damaged in mutations(schema, seed, 40):
        raw_call(batches.address, path, [damaged, whole], streams=True)


def test_hostile_tickets(direct, table):
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


def test_hostile_predicates(direct, table):
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
        answer = refusal(direct.read, token.replicas[0], token)
        assert answer in ("INVALID_ARGUMENT", "NOT_FOUND", "SCHEMA_MISMATCH"), answer


CONTROL = [
    (methods.CREATE_TABLE, "master"), (methods.DROP_TABLE, "master"),
    (methods.DESCRIBE_TABLE, "master"), (methods.TABLET_LOCATIONS, "master"),
    (methods.HEARTBEAT, "master"), (methods.LIST_TABLES, "master"),
    (methods.CREATE_TABLET, "tserver"), (methods.DELETE_TABLET, "tserver"),
    (methods.LIST_TABLETS, "tserver"), (methods.SERVER_INFO, "tserver"),
]  # fmt: skip


@pytest.mark.parametrize(("method", "role"), CONTROL, ids=[m.path for m, _ in CONTROL])
def test_hostile_control_messages(cluster, table, method, role):
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


def test_orders_of_nobody_are_refused(cluster, direct, table):
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


def test_a_used_sequence_is_never_another_operation(direct, batches):
    """Same client, same number, other bytes; and a number below those that are outstanding."""
    who = uuid.uuid4().bytes
    first = batches.message(batches.mine, client_id=who, sequence=5, first_outstanding=5)
    assert put(direct, batches, first) == f"took 0 rows, {batches.mine.num_rows} errors"
    other = batches.mine.slice(0, 1)
    again = batches.message(other, client_id=who, sequence=5, first_outstanding=5)
    assert put(direct, batches, again) == "INVALID_ARGUMENT"
    late = batches.message(other, client_id=who, sequence=4, first_outstanding=1)
    assert put(direct, batches, late) == SessionExpired.code
