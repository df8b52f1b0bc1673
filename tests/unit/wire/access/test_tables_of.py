"""Tables and columns of requests, and the check of single requests of callers with grants."""

import asyncio
from typing import Any

import pyarrow as pa
import pytest

from nyala.common import schema as schemas
from nyala.common.errors import Forbidden, InvalidArgument
from nyala.common.expressions.where import parse
from nyala.security import policy
from nyala.security.identity import PeerIdentity
from nyala.security.principal import AccessRole, Principal
from nyala.security.tables.grants import Grant, Grants, TableRef
from nyala.wire import methods
from nyala.wire.convert import predicate_from_proto, predicate_to_proto
from nyala.wire.flight_data import FlightData
from nyala.wire.proto import flight_pb2
from nyala.wire.proto import journal_pb2 as jpb
from nyala.wire.proto import nyala_pb2 as pb
from nyala.wire.proto import reads_pb2 as reads
from nyala.wire.proto import transactions_pb2 as txn
from nyala.wire.tls.access import checked
from nyala.wire.tls.requests import TableAccess
from nyala.wire.tls.tables_of import METHODS, How, columns_of, tables_of

SCHEMA = schemas.from_arrow(
    pa.schema([("k", pa.int64()), ("s", pa.string()), ("n", pa.int64()), ("g", pa.float64())]),
    ["k"],
)
IDS = {c.name: int(c.id) for c in SCHEMA.columns}
STAFF = TableRef("id-1", "staff", {v: n for n, v in IDS.items()}, frozenset({IDS["k"]}))
PAY = TableRef("id-2", "pay", {IDS["k"]: "k"}, frozenset({IDS["k"]}))
TABLETS = {"t1": STAFF, "t2": PAY}


def ids(*names):
    return frozenset(IDS[n] for n in names)


def test_every_method_of_tables_says_which_they_are():
    assert METHODS == policy.BY_TABLE


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n > 3", "n"),
        ("n + g > 1 and not (s like 'a%')", "n g s"),
        ("s in ('a', 'b') or k is null", "s k"),
        ("1 = 1", ""),
        ("s || s = 'aa'", "s"),
        ("k between n and g", "k n g"),
    ],
)
def test_columns_of_a_condition(text, names):
    assert columns_of(predicate_to_proto(parse(text, SCHEMA))) == ids(*names.split())


def test_column_of_a_condition_cannot_be_hidden_by_fields_that_are_not_used():
    """Abuse case 25: the decoder of conditions ignores the right value of a node without a left one."""
    hidden = predicate_to_proto(parse("n > 3", SCHEMA))
    assert not hidden.HasField("left")
    hidden.right.steps.add(kind=pb.ValueStep.COLUMN, column_id=IDS["g"])
    assert predicate_from_proto(hidden, SCHEMA) == parse("n > 3", SCHEMA)
    assert columns_of(hidden) == ids("n", "g")
    hidden.right.steps[0].kind = pb.ValueStep.LITERAL
    assert columns_of(hidden) == ids("n")


WHERE = predicate_to_proto(parse("n > 3", SCHEMA))


@pytest.mark.parametrize(
    ("fields", "columns", "keys"),
    [
        ({"all_columns": True}, None, False),
        ({"all_columns": True, "count_only": True}, frozenset(), False),
        ({"all_columns": True, "count_only": True, "where": WHERE}, ids("n"), False),
        ({"column_ids": [2]}, frozenset({2}), False),
        ({"column_ids": [IDS["s"]], "where": WHERE}, ids("s", "n"), False),
        ({"column_ids": [2], "ordered": True}, frozenset({2}), True),
        ({"column_ids": [2], "changes": True}, frozenset({2}), True),
        ({"column_ids": [2], "key_lower": b"x"}, frozenset({2}), True),
        ({"column_ids": [2], "key_upper": b"x"}, frozenset({2}), True),
        ({"column_ids": [2], "keys_ipc": b"x"}, frozenset({2}), True),
        ({"column_ids": [2], "resume_after": b"x"}, frozenset({2}), True),
    ],
)
def test_columns_of_a_scan(fields, columns, keys):
    """Abuse case 25: conditions, orders and bounds show something of a column, as its values do."""
    token = pb.ScanToken(tablet_id="t1", table_id="a lie", **fields)
    ticket = flight_pb2.Ticket(ticket=token.SerializeToString())
    (found,) = tables_of(methods.DO_GET.path, ticket)
    assert (found.how, found.name, found.columns, found.keys) == (How.TABLET, "t1", columns, keys)
    (split,) = tables_of(methods.SPLIT_KEY_RANGE.path, reads.SplitKeyRangeRequest(token=token))
    assert (split.columns, split.keys) == (columns, True)


@pytest.mark.parametrize(
    ("method", "request_", "named"),
    [
        (methods.CREATE_TABLE, pb.CreateTableRequest(table=pb.TableSpec(name="n")), ["new n"]),
        (methods.DROP_TABLE, pb.DropTableRequest(name="n"), ["name n"]),
        (methods.DROP_TABLE, pb.DropTableRequest(name="n", id="i"), ["id i", "name n"]),
        (methods.RECALL_TABLE, pb.RecallTableRequest(id="i", new_name="n"), ["id i", "new n"]),
        (methods.RECALL_TABLE, pb.RecallTableRequest(id="i"), ["id i"]),
        (methods.ALTER_TABLE, pb.AlterTableRequest(name="n"), ["name n"]),
        (
            methods.ALTER_TABLE,
            pb.AlterTableRequest(id="i", steps=[pb.AlterStep(rename_table="hr.n")]),
            ["id i", "new hr.n"],
        ),
        (methods.DESCRIBE_TABLE, pb.DescribeTableRequest(id="i"), ["id i"]),
        (methods.TABLET_LOCATIONS, pb.TabletLocationsRequest(table_id="i"), ["id i"]),
        (
            methods.HOLD_HISTORY,
            pb.HoldHistoryRequest(tablet_ids=["a", "b"]),
            ["tablet a", "tablet b"],
        ),
        (methods.CHECKSUM, reads.ChecksumRequest(tablet_id="a"), ["tablet a"]),
        (methods.AWAIT_CHANGES, reads.AwaitChangesRequest(tablet_ids=["a"]), ["tablet a"]),
        (methods.TXN_KEEP, txn.TxnKeepRequest(tablet_ids=["a"]), ["tablet a"]),
        (
            methods.TXN_COMMIT,
            txn.TxnCommitRequest(participants=[txn.TxnParticipant(tablet_id="a", table_id="lie")]),
            ["tablet a"],
        ),
        (methods.JOURNAL_STEP, jpb.JournalStepRequest(tablet_id="a"), ["tablet a"]),
        (methods.GET_FLIGHT_INFO, flight_pb2.FlightDescriptor(path=["n"]), ["name n"]),
    ],
)
def test_tables_of_a_request(method, request_, named):
    found = tables_of(method.path, request_)
    assert [f"{f.how.value} {f.name}" for f in found] == named
    assert all(f.columns == (None if method is methods.CHECKSUM else frozenset()) for f in found)


@pytest.mark.parametrize("method", sorted(METHODS - {methods.DO_PUT.path}))
def test_request_without_a_table_is_refused(method):
    empty = next(m for m in vars(methods).values() if getattr(m, "path", "") == method)
    request = empty.decode_request(b"")
    try:
        found = tables_of(method, request)
    except InvalidArgument:
        return
    assert all(not f.name for f in found)  # no table has the empty name or id


def test_condition_of_a_staged_delete_reads_every_column():
    header = pb.WriteHeader(tablet_id="t1", op=pb.DELETE_WHERE)
    write, read = tables_of(methods.DO_PUT.path, data(header))
    assert (write.role, write.columns) == (None, frozenset())
    assert (read.role, read.columns) == (AccessRole.READER, None)


def data(header):
    raw = header if isinstance(header, bytes) else header.SerializeToString()
    return FlightData(b"h", None, raw)


def caller(role=AccessRole.USER, name="ann"):
    return PeerIdentity(Principal("a" * 32, role, name), 1, 0, 1 << 40)


def access(*grants):
    known = Grants()
    known.replace(1, grants)
    known.fresh = True
    return TableAccess(known, lambda how, name: TABLETS.get(name) if how is How.TABLET else None)


READ_S = Grant("a", "ann", AccessRole.READER, "id-1", columns=(IDS["k"], IDS["s"]))
WRITE = Grant("b", "ann", AccessRole.WRITER, "id-1")


def test_unary_calls_are_checked_one_by_one():
    async def echo(request):
        return request

    ask = checked(methods.CHECKSUM, echo, caller(), access(WRITE))
    good = reads.ChecksumRequest(tablet_id="t1")
    assert asyncio.run(ask(good)) is good
    for bad in ("t2", "t3", ""):
        with pytest.raises(Forbidden):
            asyncio.run(ask(reads.ChecksumRequest(tablet_id=bad)))
    with pytest.raises(Forbidden, match="columns of table 'staff'"):
        asyncio.run(checked(methods.CHECKSUM, echo, caller(), access(READ_S))(good))


def test_owner_of_a_table_takes_no_name_of_others():
    """Or others would write what is theirs into it."""

    async def echo(request):
        return request

    def find(how, name):
        return TableRef("", name) if how is How.NEW else STAFF

    grants = Grants()
    owns = [
        Grant("a", "ann", AccessRole.OWNER, "id-1"),
        Grant("b", "ann", AccessRole.OWNER, prefix="ann."),
    ]
    grants.replace(1, owns)
    grants.fresh = True
    for method, ok, bad in (
        (
            methods.ALTER_TABLE,
            pb.AlterTableRequest(id="id-1", steps=[pb.AlterStep(rename_table="ann.t")]),
            pb.AlterTableRequest(id="id-1", steps=[pb.AlterStep(rename_table="hr.t")]),
        ),
        (
            methods.RECALL_TABLE,
            pb.RecallTableRequest(id="id-1", new_name="ann.t"),
            pb.RecallTableRequest(id="id-1", new_name="hr.t"),
        ),
    ):
        ask = checked(method, echo, caller(), TableAccess(grants, find))
        assert asyncio.run(ask(ok)) is ok
        with pytest.raises(Forbidden, match=r"names that begin as 'hr\.t' does"):
            asyncio.run(ask(bad))


def test_callers_with_the_role_for_the_cluster_are_not_checked():
    async def echo(request):
        return request

    assert checked(methods.CHECKSUM, echo, caller(AccessRole.READER), access()) is echo
    assert checked(methods.CHECKSUM, echo, None, None) is echo
    with pytest.raises(Forbidden, match="is for the role reader"):
        checked(methods.CHECKSUM, echo, caller(), None)
    with pytest.raises(Forbidden, match="is for the role admin"):
        checked(methods.CREATE_TOKEN, echo, caller(), access(WRITE))


def test_scans_are_checked():
    async def rows(ticket):
        yield ticket

    async def read(*grants, **fields):
        token = pb.ScanToken(**{"tablet_id": "t1", **fields})
        ask = checked(methods.DO_GET, rows, caller(), access(*grants))
        return [r async for r in ask(flight_pb2.Ticket(ticket=token.SerializeToString()))]

    assert len(asyncio.run(read(READ_S, column_ids=[IDS["s"]], ordered=True))) == 1
    for fields in ({"all_columns": True}, {"column_ids": [IDS["s"]], "where": WHERE}):
        with pytest.raises(Forbidden):
            asyncio.run(read(READ_S, **fields))
        assert len(asyncio.run(read(WRITE, **fields))) == 1


def test_scan_that_is_open_ends_when_the_grant_is_revoked():
    """Others that change meanwhile do not end it."""
    given = access(READ_S)

    async def rows(ticket):
        for number in range(100):
            yield number

    async def scenario():
        token = pb.ScanToken(tablet_id="t1", column_ids=[IDS["s"]], ordered=True)
        ask = checked(methods.DO_GET, rows, caller(), given)
        stream = ask(flight_pb2.Ticket(ticket=token.SerializeToString()))
        assert await anext(stream) == 0
        given.grants.replace(2, [READ_S, Grant("c", "bob", AccessRole.WRITER, "id-1")])
        assert await anext(stream) == 1
        given.grants.replace(3, [])
        with pytest.raises(Forbidden):
            await anext(stream)

    asyncio.run(scenario())


def test_look_up_that_is_refused_gets_an_error_and_the_stream_goes_on():
    answers: list[Any] = []

    def look_up(request, answer):
        answer(reads.GetResponse(request=request.request))

    ask = checked(methods.GET, look_up, caller(), access(READ_S))
    good = reads.GetPart(tablet_id="t1", column_ids=[IDS["s"]])
    for number, part in enumerate(
        (good, reads.GetPart(tablet_id="t1", column_ids=[IDS["n"]]), good)
    ):
        ask(reads.GetRequest(request=number, parts=[part]), answers.append)
    assert [a.request for a in answers] == [0, 1, 2]
    assert [[e.error.code for e in a.answers] for a in answers] == [[], ["FORBIDDEN"], []]


def test_look_up_without_the_key_columns_is_refused():
    """Its answer shows which keys there are."""
    answers: list[Any] = []
    only_s = Grant("d", "ann", AccessRole.READER, "id-1", columns=(IDS["s"],))
    ask = checked(methods.GET, lambda r, answer: answer("read"), caller(), access(only_s))
    ask(
        reads.GetRequest(parts=[reads.GetPart(tablet_id="t1", column_ids=[IDS["s"]])]),
        answers.append,
    )
    assert [e.error.code for a in answers for e in a.answers] == ["FORBIDDEN"]


def test_batches_that_are_refused_do_not_reach_the_handler_and_the_others_do():
    taken = []

    async def write(requests):
        async for request in requests:
            taken.append(request)
            if request.app_metadata:
                header = pb.WriteHeader.FromString(request.app_metadata)
                result = pb.WriteResult(request=header.request, rows=1)
                yield flight_pb2.PutResult(app_metadata=result.SerializeToString())

    async def sent():
        yield data(b"")
        for number, tablet in enumerate(("t1", "t2", "t3", "t1")):
            yield data(pb.WriteHeader(tablet_id=tablet, request=number, op=pb.UPSERT))

    async def main():
        stream = checked(methods.DO_PUT, write, caller(), access(WRITE))(sent())
        found = [pb.WriteResult.FromString(r.app_metadata) async for r in stream]
        return sorted((f.request, f.rows, f.error.code) for f in found)

    assert asyncio.run(main()) == [
        (0, 1, ""), (1, 0, "FORBIDDEN"), (2, 0, "FORBIDDEN"), (3, 1, ""),
    ]  # fmt: skip
    assert len(taken) == 3


def test_error_of_the_handler_of_batches_ends_the_stream():
    async def write(requests):
        async for _ in requests:
            raise InvalidArgument("what; do this")
        yield

    async def main():
        async def sent():
            yield data(b"")

        return [r async for r in checked(methods.DO_PUT, write, caller(), access(WRITE))(sent())]

    with pytest.raises(InvalidArgument, match="what; do this"):
        asyncio.run(main())


def test_calls_inside_of_a_stream_are_checked():
    answers: list[Any] = []

    def call(request, answer):
        answer(reads.CallResponse(request=request.request))

    grant = Grant("c", "ann", AccessRole.READER, "id-1")
    ask = checked(methods.CALL, call, caller(), access(grant))
    step = jpb.JournalStepRequest(tablet_id="t1").SerializeToString()
    read = jpb.JournalReadRequest(tablet_id="t1").SerializeToString()
    other = jpb.JournalReadRequest(tablet_id="t2").SerializeToString()
    for number, (method, message) in enumerate(
        ((methods.JOURNAL_STEP, step), (methods.JOURNAL_READ, read), (methods.JOURNAL_READ, other),
         (methods.CREATE_TOKEN, b""), (methods.JOURNAL_READ, b"\xff"))
    ):  # fmt: skip
        request = reads.CallRequest(request=number, method=method.path, message=message)
        ask(request, answers.append)
    codes = [a.error.code for a in answers]
    assert codes == ["FORBIDDEN", "", "FORBIDDEN", "FORBIDDEN", "INVALID_ARGUMENT"]


def test_list_of_tables_has_those_that_are_granted():
    async def listed(request):
        rows = [pb.TableSummary(id=t.id, name=t.name) for t in TABLETS.values()]
        return pb.ListTablesResponse(tables=rows, as_of=pb.AsOf(at=5))

    ask = checked(methods.LIST_TABLES, listed, caller(), access(READ_S))
    found = asyncio.run(ask(pb.ListTablesRequest()))
    assert ([t.name for t in found.tables], found.as_of.at) == (["staff"], 5)
    whole = checked(methods.LIST_TABLES, listed, caller(AccessRole.READER), access())
    assert len(asyncio.run(whole(pb.ListTablesRequest())).tables) == 2


@pytest.mark.parametrize("raw", [b"\xff", b"\x0a\xff", b"\x00" * 9])
def test_hostile_bytes_are_refused(raw):
    with pytest.raises(InvalidArgument):
        list(tables_of(methods.DO_PUT.path, data(raw)))
    with pytest.raises(InvalidArgument):
        tables_of(methods.DO_GET.path, flight_pb2.Ticket(ticket=raw))
