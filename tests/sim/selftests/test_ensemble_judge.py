"""The judges of simulated ensembles: each rule, broken once by a commit or an answer, is reported."""

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from nyala.common.errors import AlreadyPresent, NotFound
from nyala.ram.ids import LAST_HASH, ServerId
from nyala.ram.tablet_map import mapping
from nyala.wire.proto import ram_pb2 as pb
from tests.sim.ensembles.commits import Commit
from tests.sim.ensembles.history import EnsembleHistory
from tests.sim.ensembles.members import MemberRules
from tests.sim.ensembles.model import EnsembleModel, assert_covered, pieces_of

ONE, TWO, THREE = ServerId(1, 1), ServerId(2, 2), ServerId(3, 3)
EPOCH, HALF = 7, 1 << 63
Entry = tuple[str, str, pb.Record]


def operation(number: int) -> pb.OperationId:
    return pb.OperationId(client="c", sequence=number)


def table(table_id: int = 1, name: str = "a", owner: ServerId = ONE, number: int = 1) -> pb.Table:
    return pb.Table(
        id=table_id, name=name, server_span=1, tablets=[mapping(0, LAST_HASH, owner)],
        operation=operation(number),
    )  # fmt: skip


def up(server: ServerId, version: int, address: str = "") -> Entry:
    address = address or f"m:{server.generation}"
    made = pb.ServerUp(
        id=server.message(), roles=["master"], address=address, update_version=version
    )
    return "done", "enlist", pb.Record(server_up=made)


def change(what: str, server: ServerId, version: int) -> Entry:
    made = pb.ServerChange(id=server.message(), update_version=version)
    return "done", "crash", pb.Record(**{what: made})  # type: ignore[arg-type]


def group(server: ServerId, version: int) -> Entry:
    made = pb.ReplicationGroup(id=server.message(), group=3, update_version=version)
    return "done", "assign_group", pb.Record(server_replication_update=made)


def created(made: pb.Table) -> Entry:
    return "intent", "create_table", pb.Record(create_table=made)


def alive(made: pb.Table) -> Entry:
    return "done", "create_table", pb.Record(alive_table=made)


def dropped(table_id: int, name: str, number: int) -> Entry:
    made = pb.DropTable(id=table_id, name=name, operation=operation(number))
    return "intent", "drop_table", pb.Record(drop_table=made)


def split(at: int) -> Entry:
    made = pb.SplitTablet(table_id=1, split_hash=at)
    return "intent", "split_tablet", pb.Record(split_tablet=made)


def recovered(lost: ServerId, *pieces: pb.Mapping) -> Entry:
    made = pb.TabletRecovered(table_id=1, lost=lost.message(), pieces=pieces)
    return "intent", "recover_tablets", pb.Record(tablet_recovered=made)


class Log:
    """Commits of one leader to a model, whose clients have requested tables a and b, a drop and a split."""

    def __init__(self) -> None:
        self.calls: dict[tuple[int, str, int], set[ServerId]] = {}
        self.history = EnsembleHistory(self.calls)
        self.model = EnsembleModel(self.history)
        for name, number in (("a", 1), ("b", 2)):
            request = pb.CreateTableRequest(name=name, server_span=1, operation=operation(number))
            self.history.asked(request, 0)
        self.history.asked(pb.DropTableRequest(name="a", operation=operation(3)), 0)
        self.history.asked(pb.SplitTabletRequest(name="a", split_hash=HALF), 0)
        self.id = 0
        self.data: dict[int, bytes] = {}

    def commit(self, *entries: Entry, gone: tuple[int, ...] = (), epoch: int = EPOCH) -> int:
        """Append entries and invalidate others, in one step; return the id of the last one."""
        made = []
        for state, kind, record in entries:
            self.id += 1
            record.epoch = epoch
            self.data[self.id] = f"{state} {kind} ".encode() + record.SerializeToString()
            made.append((self.id, self.data[self.id]))
        position = len(self.model.seen)
        ended = tuple((i, self.data[i]) for i in gone)
        self.model.commit(Commit(position, EPOCH, tuple(made), ended))
        return self.id

    def create(self) -> None:
        """Enlist two servers, and create table a at the first."""
        self.commit(up(ONE, 1))
        self.commit(up(TWO, 2))
        intent = self.commit(created(table()))
        self.calls[EPOCH, "take", 1] = {ONE}
        self.commit(alive(table()), gone=(intent,))


@pytest.fixture
def log() -> Log:
    made = Log()
    made.create()
    return made


def test_log_without_mistakes_is_accepted(log: Log):
    log.commit(split(HALF))
    log.commit(change("server_crashed", ONE, 3))
    log.commit(
        recovered(ONE, mapping(0, HALF - 1, TWO), mapping(HALF, LAST_HASH, TWO)),
    )
    log.commit(change("server_remove_update", ONE, 4))
    log.commit(("done", "confirm", pb.Record(server_list_version=4)), gone=(1,))
    log.commit(dropped(1, "a", 3))
    log.commit(("done", "drop_table", pb.Record(largest_table_id=1)))
    log.commit(created(table(2, "b", TWO, 2)))
    assert log.model.up() == {TWO}
    assert [sorted(t) for t in log.model.seen][-1] == ["b"]


MISTAKES: list[tuple[str, list[Entry]]] = [
    ("id 1 again", [created(table(1, "b", ONE, 2))]),
    ("two tables 'a'", [created(table(2, "a", ONE, 1))]),
    ("own tablets, and", [created(table(2, "b", THREE, 2))]),
    ("other tablets than requested", [created(pb.Table(id=2, name="b", server_span=1))]),
    ('name: "c"', [created(table(2, "c", ONE, 2))]),
    ("sequence: 9", [dropped(1, "a", 9)]),
    ("drops ModelTable", [dropped(1, "b", 3)]),
    ("there is no table", [dropped(5, "a", 3)]),
    ("nobody asked", [split(HALF + 1)]),
    ("begins with", [split(HALF), split(HALF)]),
    ("did not crash", [recovered(ONE, mapping(0, LAST_HASH, TWO))]),
    (
        "take tablets, and",
        [change("server_crashed", ONE, 3), recovered(ONE, mapping(0, LAST_HASH, ONE))],
    ),
    (
        "owns nothing of",
        [change("server_crashed", TWO, 3), recovered(TWO, mapping(0, LAST_HASH, ONE))],
    ),
    (
        "begins after|have no tablet",
        [change("server_crashed", ONE, 3), recovered(ONE, mapping(0, 5, TWO))],
    ),
    ("is ModelTable", [alive(table(1, "a", TWO))]),
    ("not 1", [("done", "drop_table", pb.Record(largest_table_id=2))]),
    ("an intent of", [("intent", "enlist", pb.Record(server_up_update=4))]),
    ("a record of no type", [("done", "enlist", pb.Record())]),
    ("again", [up(ONE, 3)]),
    ("has a used index", [up(ServerId(1, 3), 3)]),
    ("two servers are up at", [up(THREE, 3, "m:1")]),
    ("version 4 of the list after 2", [up(THREE, 4)]),
    ("becomes REMOVE", [change("server_remove_update", TWO, 3)]),
    (
        "becomes CRASHED",
        [change("server_crashed", TWO, 3), change("server_crashed", TWO, 4)],
    ),
    (
        "is removed and owns",
        [change("server_crashed", ONE, 3), change("server_remove_update", ONE, 4)],
    ),
    ("gets group", [group(TWO, 3), group(TWO, 4)]),
    ("not 2", [("done", "confirm", pb.Record(server_list_version=3))]),
]


@pytest.mark.parametrize(("match", "entries"), MISTAKES, ids=[m for m, _ in MISTAKES])
def test_commit_that_breaks_a_rule_is_reported(log: Log, match: str, entries: list[Entry]):
    for one in entries[:-1]:
        log.commit(one)
    with pytest.raises(AssertionError, match=match):
        log.commit(entries[-1])


def test_record_of_another_leader_is_reported(log: Log):
    with pytest.raises(AssertionError, match="of the leader of epoch 7"):
        log.commit(up(THREE, 3), epoch=6)


def test_drop_that_takes_effect_twice_is_reported(log: Log):
    log.commit(dropped(1, "a", 3))
    log.history.asked(pb.CreateTableRequest(name="a", server_span=1, operation=operation(4)), 0)
    log.commit(created(table(2, "a", ONE, 4)))
    with pytest.raises(AssertionError, match="has dropped another table before"):
        log.commit(dropped(2, "a", 3))


def test_end_of_an_operation_whose_servers_were_not_called_is_reported(log: Log):
    intent = log.commit(split(HALF))
    with pytest.raises(
        AssertionError, match="of table 1 ends, and its leader, epoch 7, has called"
    ):
        log.commit(gone=(intent,))


def test_server_that_is_forgotten_before_it_is_removed_is_reported(log: Log):
    with pytest.raises(AssertionError, match="is forgotten"):
        log.commit(gone=(2,))


def test_tablets_that_overlap_are_reported():
    twice = [mapping(0, HALF, ONE), mapping(HALF, LAST_HASH, ONE)]
    with pytest.raises(AssertionError, match="begins after"):
        assert_covered(pieces_of(twice))


# ---- answers -------------------------------------------------------------------------------------------


A, B, NEW = operation(1), operation(2), operation(8)
ANSWERS: list[tuple[Any, Any]] = [
    (pb.CreateTableRequest(name="a", server_span=1, operation=A), AlreadyPresent("a")),
    (pb.CreateTableRequest(name="b", server_span=1, operation=B), AlreadyPresent("b")),
    (
        pb.CreateTableRequest(name="a", server_span=1, operation=NEW),
        pb.CreateTableResponse(table=table()),
    ),
    (pb.DropTableRequest(name="a", operation=NEW), NotFound("a")),
    (pb.DropTableRequest(name="a", operation=NEW), pb.DropTableResponse(id=1)),
    (pb.DropTableRequest(name="a", operation=NEW), pb.DropTableResponse()),
    (
        pb.SplitTabletRequest(name="a", split_hash=HALF),
        pb.SplitTabletResponse(table=table()),
    ),
    (pb.SplitTabletRequest(name="a", split_hash=HALF), NotFound("a")),
    (pb.TabletMapRequest(), pb.TabletMapResponse()),
    (pb.TabletMapRequest(), pb.TabletMapResponse(tables=[table(owner=TWO)])),
]  # fmt: skip


@pytest.mark.parametrize(("request_", "answer"), ANSWERS, ids=range(len(ANSWERS)))
def test_answer_that_contradicts_the_log_is_reported(log: Log, request_: Any, answer: Any):
    now = len(log.model.seen) - 1
    log.history.shown = now
    call = log.history.asked(request_, now)
    with pytest.raises(AssertionError, match="it fits no state from commit 4"):
        log.history.answered(call, answer, log.model)


def test_answer_that_calls_a_living_server_crashed_is_reported(log: Log):
    call = log.history.asked(pb.HintCrashedRequest(id=ONE.message()), 4)
    with pytest.raises(AssertionError, match="is called crashed, and is up"):
        log.history.answered(call, pb.HintCrashedResponse(crashed=True), log.model)


def test_hint_that_is_answered_requires_nothing_of_later_reads(log: Log):
    """Seed 5: a leader answers it from its memory, which lacks the step that has just taken effect."""
    tables = pb.TabletMapResponse(tables=[table()])
    before = len(log.model.seen) - 1
    log.commit(dropped(1, "a", 3))
    hint = log.history.asked(pb.HintCrashedRequest(id=ServerId(9, 9).message()), before + 1)
    log.history.answered(hint, NotFound("no such server"), log.model)
    assert log.history.shown <= before
    read = log.history.asked(pb.TabletMapRequest(), before + 1)
    log.history.answered(read, tables, log.model)


# ---- servers -------------------------------------------------------------------------------------------


def member(version: int, *listed: tuple[ServerId, str]) -> Any:
    states = [pb.ServerState(id=s.message(), status=status) for s, status in listed]
    return SimpleNamespace(servers=SimpleNamespace(version=version), listed=lambda: states)


def test_list_of_a_server_that_differs_from_the_log_is_reported(log: Log):
    rules = MemberRules(log.model, "member-0", Counter())
    one = member(2, (ONE, "UP"), (TWO, "UP"))
    rules.look(one)
    assert rules.checks["lists"] == 1
    for version, match in ((1, "list 1 after 2"), (3, "list 3 is in no log")):
        one.servers.version = version
        with pytest.raises(AssertionError, match=match):
            rules.look(one)
    with pytest.raises(AssertionError, match="list 2 is"):
        rules.look(member(2, (ONE, "UP"), (TWO, "CRASHED")))


def test_request_of_an_earlier_leader_that_is_accepted_is_reported(log: Log):
    rules, one = MemberRules(log.model, "member-0", Counter()), member(0)
    assert rules.accepted(one, 8)
    assert not rules.accepted(one, 8)
    with pytest.raises(AssertionError, match="epoch 7 accepted after 8"):
        rules.accepted(one, 7)
