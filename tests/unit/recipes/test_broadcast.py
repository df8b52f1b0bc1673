"""BroadcastList: versions in order and without gaps, updates that are dropped, the full list."""

import pytest

from nyala.common.errors import ConditionFailed, Corrupt, InvalidArgument
from nyala.recipes.broadcast import MAX_UPDATES, BroadcastCopy, BroadcastList, Update
from tests.unit.recipes.support.blocking import processes


def changed(count: int, *, members: tuple[str, ...] = ("m",)) -> BroadcastList:
    """Return a list with so many changes that took effect."""
    made = BroadcastList("servers")
    for member in members:
        made.joined(member)
    for n in range(1, count + 1):
        made.changed(Update(n, f"i{n}", b"%d" % n))
    return made


@pytest.mark.row("S3.8", "S3.10")
def test_member_gets_each_version_once_in_order() -> None:
    source, copy, seen = changed(2 * MAX_UPDATES + 1), BroadcastCopy(), []
    while (message := source.message(copy.version)) is not None:
        assert message.items is None
        assert len(message.updates) <= MAX_UPDATES == 100
        seen += [u.version for u in message.updates]
        copy.take(message)
    assert seen == list(range(1, 2 * MAX_UPDATES + 2))
    assert (copy.version, copy.items) == (source.version, source.items)


def test_message_that_arrives_again_or_too_early_changes_nothing() -> None:
    source, copy = changed(3), BroadcastCopy()
    first, late = source.message(0), source.message(2)
    assert first is not None
    assert late is not None
    assert copy.take(late) == 0
    assert copy.items == {}
    assert copy.take(first) == 3
    source.changed(Update(4, "i1", None))
    removal = source.message(3)
    assert removal is not None
    assert copy.take(removal) == 4
    assert copy.take(first) == 4
    assert copy.items == source.items == {"i2": b"2", "i3": b"3"}


@pytest.mark.row("S3.10")
def test_updates_are_dropped_when_all_members_have_them() -> None:
    source = changed(5, members=("a", "b"))
    source.confirmed("a", 5)
    assert source.kept == 5
    source.confirmed("b", 3)
    source.confirmed("b", 1)  # an answer that was delayed
    assert source.kept == 2
    source.left("b")
    assert source.kept == 0


def test_member_that_missed_dropped_updates_gets_the_full_list() -> None:
    source, copy = changed(5), BroadcastCopy()
    source.confirmed("m", 4)
    message = source.message(2)
    assert message is not None
    assert message.items == source.items
    assert message.version == 5
    assert copy.take(message) == 5
    assert copy.items == source.items
    assert source.message(5) is None
    after = source.message(4)
    assert after is not None
    assert [u.version for u in after.updates] == [5]


def test_change_that_does_not_follow_is_refused_and_changes_nothing() -> None:
    source = changed(2)
    for version in (2, 4):
        with pytest.raises(InvalidArgument, match=f"version {version}, and the list 2; make a"):
            source.changed(Update(version, "x", b""))
    assert source.version == 2
    assert "x" not in source.items


@pytest.mark.parametrize("version", [-1, 3, True, "1"])
def test_version_that_the_list_never_had_is_refused(version: int) -> None:
    source = changed(2)
    for call in (
        source.message,
        lambda v: source.joined("n", v),
        lambda v: source.confirmed("m", v),
    ):
        with pytest.raises(InvalidArgument, match="is the member of another list"):
            call(version)


@processes
def test_next_leader_has_the_list_of_the_one_before(p):
    journal = p.journal()
    source = BroadcastList("servers")
    for name, value in (("a", b"1"), ("b/item/c", b"2"), ("a", b"3"), ("d", b""), ("d", None)):
        step = journal.atomically()
        update = source.change(step, name, value)
        step.send()
        source.changed(update)
    journal.set("servers2/item/x", b"of another list")
    again = BroadcastList("servers", journal.list("servers/"))
    assert (again.version, again.items) == (5, {"a": b"3", "b/item/c": b"2"})
    assert (again.version, again.items) == (source.version, source.items)
    message = again.message(2)
    assert message is not None
    assert message.items == again.items, "the updates before are known no more"


@processes
def test_version_that_another_program_has_set_is_refused(p):
    journal = p.journal()
    for value in (b"", b"x", b"-1", b"1e3"):
        journal.set("servers/version", value)
        with pytest.raises(Corrupt, match="'servers/version' has the value"):
            BroadcastList("servers", journal.list("servers/"))


@processes
def test_change_whose_step_has_no_effect_leaves_list_and_version(p):
    journal = p.journal()
    source = BroadcastList("servers")
    step = journal.atomically()
    step.require(key="absent", version=7)
    source.change(step, "a", b"1")
    with pytest.raises(ConditionFailed):
        step.send()
    assert (source.version, list(journal.list("servers/"))) == (0, [])
    assert source.message(0) is None


@processes
def test_step_takes_one_change_of_a_list(p):
    journal = p.journal()
    one, other = BroadcastList("one"), BroadcastList("other")
    with journal.atomically() as step:
        first = one.change(step, "a", b"1")
        other.change(step, "a", b"1")
        with pytest.raises(InvalidArgument, match="has a change of list 'one' already"):
            one.change(step, "b", b"2")
    one.changed(first)
    found = BroadcastList("one", journal.list("one/"))
    assert (found.version, found.items) == (1, {"a": b"1"})
