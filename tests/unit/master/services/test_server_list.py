"""The list of tablet servers: one version for each change; copies apply consecutive versions."""

import random
from typing import Any

import pytest

from nyala.common.errors import InvalidArgument, NotFound
from nyala.master.catalog.catalog import Catalog
from nyala.master.catalog.plan import CatalogPlan
from nyala.master.ddl import server_states
from nyala.master.ddl.server_states import ServerLiveness
from nyala.wire.proto import nyala_pb2 as pb
from nyala.wire.server_list import ServerList
from tests.unit.master.support.ddl_operations import loaded, rows_of, with_table
from tests.unit.master.support.master_helpers import server_info

due: Any = server_states.due
mark: Any = server_states.mark
INCARNATION = "cat"


def seen(names, long_enough=True):
    return ServerLiveness({n: server_info(n) for n in names}, long_enough)


def put(catalog, *operations):
    for operation in operations:
        catalog.publish(catalog.draft(operation.plan(catalog)))


def states(catalog):
    return {s.uuid: (s.version, s.alive) for s in catalog.servers.all()}


def some(names="abc"):
    catalog = Catalog()
    put(catalog, *due(catalog, seen(names)))
    return catalog


def lacks(catalog, copy):
    return catalog.servers.update(INCARNATION, copy.known)


@pytest.mark.row("S3.6")
def test_each_change_of_a_server_is_one_entry_with_the_next_version():
    catalog = some()
    assert states(catalog) == {"a": (1, True), "b": (2, True), "c": (3, True)}
    assert due(catalog, seen("abc")) == [], "nothing changed"
    assert due(catalog, seen("ab", long_enough=False)) == [], (
        "the leader has not received heartbeats for long enough"
    )
    (died,) = due(catalog, seen("ab"))
    plan = died.plan(catalog)
    (row,) = catalog.draft(plan).rows
    listed = pb.ListedServer.FromString(row.body)
    assert (row.kind, row.id, listed.alive, listed.version) == ("server", "c", False, 4), (
        "a single row is written"
    )
    put(catalog, died)
    assert died.plan(catalog).writes is False, "a repetition changes nothing"
    put(catalog, *due(catalog, seen("abc")), mark("b", maintenance=True))
    assert states(catalog) == {"a": (1, True), "b": (6, True), "c": (5, True)}
    assert not mark("b", maintenance=True).plan(catalog).writes
    put(catalog, mark("b", maintenance=False))
    assert catalog.servers.version == 7


@pytest.mark.row("S3.8", "S3.7")
def test_server_list_copy_applies_only_consecutive_versions():
    catalog, copy = some(), ServerList()
    first = lacks(catalog, copy)
    assert (first.after, first.version, len(first.servers)) == (0, 3, 3)
    assert copy.take(first)
    assert lacks(catalog, copy) is None
    put(catalog, mark("a", maintenance=True))
    second = lacks(catalog, copy)
    assert [s.uuid for s in second.servers] == ["a"], "only the changes are sent"
    put(catalog, mark("b", decommission=True))
    third = catalog.servers.update(INCARNATION, pb.ListVersion(incarnation=INCARNATION, version=4))
    assert not copy.take(third), "a list after a gap is refused"
    assert copy.version == 3
    assert copy.take(second)
    assert copy.take(third)
    assert not copy.take(second), "a late list is ignored"
    assert not copy.take(first), "an older list is ignored"
    assert copy.all() == catalog.servers.all()
    behind = ServerList()
    behind.take(first)
    assert [s.uuid for s in lacks(catalog, behind).servers] == ["a", "b"], (
        "all missed changes are sent"
    )


@pytest.mark.row("S3.8")
@pytest.mark.parametrize("seed", range(5))
def test_server_list_copies_converge_after_lost_and_repeated_updates(seed):
    rng, catalog = random.Random(seed), some("abcd")
    copies = [ServerList() for _ in range(3)]
    on_the_way: list[tuple[ServerList, pb.ServerListUpdate]] = []
    for _ in range(200):
        name = rng.choice("abcd")
        if rng.random() < 0.5:
            put(catalog, mark(name, maintenance=rng.random() < 0.5))
        else:
            put(catalog, *due(catalog, seen(rng.sample("abcd", 3))))
        copy = rng.choice(copies)
        update = lacks(catalog, copy)
        if update is not None:
            on_the_way.append((copy, update))
        if on_the_way and rng.random() < 0.7:
            before = copy.version
            to, update = rng.choice(on_the_way)  # lost, repeated, out of order
            to.take(update)
            assert copy.version >= before
    for copy in copies:
        while (update := lacks(catalog, copy)) is not None:
            assert copy.take(update)
        assert copy.all() == catalog.servers.all()


def test_server_list_of_another_catalog_replaces_the_whole_copy():
    copy = ServerList()
    copy.take(lacks(some(), copy))
    other = some("xy").servers
    known = pb.ListVersion(incarnation="new", version=1)
    assert not copy.take(other.update("new", known))
    assert copy.take(other.update("new", copy.known))
    assert [s.uuid for s in copy.all()] == ["x", "y"]
    assert not copy.take(pb.ServerListUpdate())
    whole = other.update("new", pb.ListVersion(incarnation="new", version=99))
    assert whole.after == 0, "a copy that is ahead gets the whole list"


def test_next_leader_has_the_same_server_list():
    catalog = some()
    put(catalog, mark("a", maintenance=True))
    draft = catalog.draft(CatalogPlan(servers=tuple(catalog.servers.all())))
    later = Catalog()
    later.load(draft.rows)
    assert later.servers.all() == catalog.servers.all()
    assert later.servers.version == 4


def test_invalid_server_mark_is_refused():
    catalog = loaded(rows_of(with_table()))
    put(catalog, *due(catalog, seen("abc")))
    with pytest.raises(NotFound, match="tserver list"):
        mark("x", maintenance=True).plan(catalog)
    with pytest.raises(InvalidArgument, match=r"2 live servers would be left.*3 replicas"):
        mark("a", decommission=True).plan(catalog)
    put(catalog, *due(catalog, seen("abcd")), mark("a", decommission=True))
    assert not mark("a", decommission=True).plan(catalog).writes
    with pytest.raises(InvalidArgument, match="2 live servers"):
        mark("b", decommission=True).plan(catalog)
    put(catalog, mark("a", decommission=False), mark("b", decommission=True))
