"""Holds on one server: times that stay readable, durations, and the horizon of compactions."""

import pytest

from nyala.common.errors import HistoryGone, InvalidArgument, Throttled
from nyala.common.ids import TabletId
from nyala.tserver import history_holds as room
from nyala.tserver.history_holds import HistoryHolds

T = TabletId("ab" * 16)


class Clock:
    def __init__(self) -> None:
        self.now_us = 0

    def monotonic_us(self) -> int:
        return self.now_us

    def wall_us(self) -> int:
        return self.now_us


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def holds(clock):
    made = HistoryHolds(clock)
    clock.now_us = room.RENEWAL_GRACE_MS * 1000
    return made


def horizon_of(holds: HistoryHolds, wanted: int | None = 1000) -> int | None:
    with holds.collecting(T, wanted) as horizon:
        return horizon


@pytest.mark.row("A16")
def test_no_horizon_passes_a_held_time(holds, clock):
    assert horizon_of(holds) == 1000
    holds.hold(T, "one", 700, 50, horizon=0)
    holds.hold(T, "two", 300, 20, horizon=300)
    assert horizon_of(holds) == 300
    assert horizon_of(holds, 200) == 200
    assert horizon_of(holds, None) is None
    clock.now_us += 19_999
    assert [(n, h.at, left) for n, h, left in holds.of(T)] == [("one", 700, 30), ("two", 300, 0)]
    clock.now_us += 1
    assert horizon_of(holds) == 700
    holds.release(T, "one")
    holds.release(T, "never")
    assert horizon_of(holds) == 1000
    assert holds.of(T) == []


def test_hold_with_same_name_replaces_the_earlier_one(holds, clock):
    holds.hold(T, "one", 700, 20, horizon=0)
    clock.now_us += 10_000
    holds.hold(T, "one", 600, 20, horizon=0)
    clock.now_us += 15_000
    assert horizon_of(holds) == 600


def test_hold_of_expired_or_expiring_history_is_refused(holds):
    with pytest.raises(HistoryGone) as caught:
        holds.hold(T, "one", 99, 20, horizon=100)
    assert caught.value.details == {"horizon": "100"}
    with holds.collecting(T, 1000):
        with pytest.raises(HistoryGone, match="below 1000"):
            holds.hold(T, "one", 999, 20, horizon=0)
        holds.hold(T, "two", 1000, 20, horizon=0)
    holds.hold(T, "one", 999, 20, horizon=0)  # the compaction failed, or removed nothing
    assert horizon_of(holds) == 999


def test_restarted_server_delays_collection_for_forgotten_holds(clock):
    holds = HistoryHolds(clock)
    clock.now_us = room.RENEWAL_GRACE_MS * 1000 - 1
    assert horizon_of(holds) is None
    holds.hold(T, "one", 700, 20, horizon=0)
    clock.now_us += 1
    assert horizon_of(holds) == 700


def test_restarted_server_reports_retired_tablets_as_held_until_holds_are_renewed(clock):
    holds = HistoryHolds(clock)
    assert holds.left_ms(T, below=1000) == room.RENEWAL_GRACE_MS
    clock.now_us = room.RENEWAL_GRACE_MS * 1000 - 1
    assert holds.left_ms(T, below=1000) == 1
    holds.hold(T, "one", 700, 20, horizon=0)
    assert holds.left_ms(T, below=1000) == 20
    clock.now_us += 1
    assert holds.left_ms(T, below=700) == 0


def test_invalid_hold_names_lifetimes_and_counts_are_refused(holds, monkeypatch):
    for name, ttl in (("", 1), ("x" * 65, 1), ("one", 0), ("one", room.MAX_TTL_MS + 1)):
        with pytest.raises(InvalidArgument, match="time to live"):
            holds.hold(T, name, 700, ttl, horizon=0)
    monkeypatch.setattr(room, "MAX_HOLDS", 2)
    holds.hold(T, "one", 700, 20, horizon=0)
    holds.hold(T, "two", 700, 20, horizon=0)
    holds.hold(T, "two", 800, 20, horizon=0)
    with pytest.raises(Throttled, match="2 holds"):
        holds.hold(T, "three", 700, 20, horizon=0)


def test_hold_of_a_user_is_not_replaced_or_released_by_others(holds):
    """Readers see the names of all holds."""
    holds.hold(T, "one", 700, 20, horizon=0, owner="ann")
    for other in ("bob", ""):
        holds.hold(T, "one", 900, 20, horizon=0, owner=other)
        holds.release(T, "one", owner=other)
    assert horizon_of(holds) == 700
    holds.release(T, "one", owner="ann")
    assert horizon_of(holds) == 1000


def test_holds_of_one_user_leave_room_for_those_of_others(holds, monkeypatch):
    monkeypatch.setattr(room, "MAX_OF_OWNER", 2)
    for name in ("one", "two", "two"):
        holds.hold(T, name, 700, 20, horizon=0, owner="ann")
    with pytest.raises(Throttled, match="ann has 2 holds"):
        holds.hold(T, "three", 700, 20, horizon=0, owner="ann")
    holds.hold(T, "three", 700, 20, horizon=0, owner="bob")
    assert len(holds.of(T)) == 3


@pytest.mark.parametrize("swept", [False, True])
def test_times_below_a_compaction_stay_refused_when_the_last_hold_ends(holds, clock, swept):
    """The compaction is still under way: a hold that it does not know could not be kept."""
    with holds.collecting(T, 1000):
        holds.hold(T, "one", 1000, 20, horizon=0)
        if swept:
            clock.now_us += room.SWEEP_MS * 1000
            holds.hold(TabletId("cd" * 16), "other", 1, 20, horizon=0)
        else:
            holds.release(T, "one")
        with pytest.raises(HistoryGone):
            holds.hold(T, "two", 999, 20, horizon=0)
    holds.hold(T, "two", 999, 20, horizon=0)
