"""Plans of `nyala cluster rebalance`: even at the end, and no step that places replicas worse."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nyala.operate.rebalance.plan import EVEN, Move, PlacedTablet, Placement, plan, plan_leaders


@st.composite
def placements(draw, located=False):
    servers = [f"s{n}" for n in range(draw(st.integers(3, 7)))]
    names = st.sampled_from(["a", "b", "c"] if located else [""])
    locations = {s: draw(names) for s in servers}
    tablets = {}
    for n in range(draw(st.integers(0, 25))):
        count = draw(st.sampled_from([1, 3, 3, 3]))
        order = draw(st.permutations(servers[: draw(st.integers(count, len(servers)))]))
        leader = draw(st.sampled_from(["", *order[:count]]))
        table = draw(st.sampled_from(["t", "u", "v"]))
        movable = draw(st.integers(0, 9)) > 0 or not located
        tablets[f"{n}"] = PlacedTablet(f"{n}", table, tuple(order[:count]), leader, movable)
    return Placement(locations, tablets)


def skew(placement, counts):
    numbers = [counts.get(s, 0) for s in placement.locations]
    return max(numbers) - min(numbers)


@pytest.mark.row("A19")
@given(placements())
def test_servers_and_tables_are_even_after_a_plan(placement):
    before = dict(placement.tablets)
    moves = list(plan(placement))
    for counts in placement.of_table.values():
        assert skew(placement, counts) <= EVEN
    assert skew(placement, placement.totals) <= EVEN
    replayed = {i: set(t.servers) for i, t in before.items()}
    for move in moves:
        assert move.source in replayed[move.tablet]
        assert move.target not in replayed[move.tablet]
        replayed[move.tablet] ^= {move.source, move.target}
    assert replayed == {i: set(t.servers) for i, t in placement.tablets.items()}
    assert list(plan(placement)) == []


@given(placements(located=True))
def test_no_location_gets_more_than_its_share_of_a_tablet(placement):
    shares = {i: placement.share(t) for i, t in placement.tablets.items()}
    before = {i: most(placement, t) for i, t in placement.tablets.items()}
    fixed = {i: t for i, t in placement.tablets.items() if not t.movable}
    for move in plan(placement):
        assert move.tablet not in fixed
        tablet = placement.tablets[move.tablet]
        assert len(set(tablet.servers)) == len(tablet.servers)
        assert most(placement, tablet) <= max(shares[move.tablet], before[move.tablet])
    assert {i: placement.tablets[i] for i in fixed} == fixed


def most(placement, tablet):
    return max(Counter(placement.location(s) for s in tablet.servers).values())


@given(placements())
def test_leaders_of_each_table_are_spread_over_the_replicas(placement):
    list(plan(placement))
    led = {t.id: t.leader for t in placement.tablets.values() if t.leader in t.servers}
    placement.tablets = {
        i: PlacedTablet(i, t.table, t.servers, led.get(i, "")) for i, t in placement.tablets.items()
    }
    moves = list(plan_leaders(placement))
    for move in moves:
        assert led[move.tablet] == move.source
        assert move.target in placement.tablets[move.tablet].servers
        led[move.tablet] = move.target
    for tablet, leader in led.items():  # no single transfer would make its table more even
        placed = placement.tablets[tablet]
        counts = Counter(led[i] for i in led if placement.tablets[i].table == placed.table)
        assert all(counts[leader] - counts[s] <= EVEN for s in placed.servers)


def test_replicas_leave_a_location_that_has_more_than_its_share():
    locations = {"a1": "a", "a2": "a", "b1": "b", "c1": "c"}
    placement = Placement(locations, {"x": PlacedTablet("x", "t", ("a1", "a2", "b1"))})
    (move,) = plan(placement)
    assert move == Move("x", "a1", "c1", "a has more than 1 of its replicas")


def test_server_gets_no_second_replica_of_a_tablet_though_its_location_may_have_two():
    tablets = {"w": PlacedTablet("w", "t", ("a1", "a2", "b1"))}
    tablets |= {name: PlacedTablet(name, "t", ("a1",)) for name in ("x", "y")}
    placement = Placement({"a1": "a", "a2": "a", "b1": "b"}, tablets)
    assert {move.tablet for move in plan(placement)} <= {"x", "y"}
    assert max(placement.totals.values()) == 2


def test_replicas_on_servers_in_maintenance_count_for_their_location():
    """Otherwise a location has two of a tablet's three replicas when its server is back."""
    tablets = {f"{n}": PlacedTablet(f"{n}", "t", ("a1", "b1", "c1")) for n in range(6)}
    locations = {"a1": "a", "b1": "b", "b2": "b", "c2": "c"}
    placement = Placement(locations, tablets, {"c1": "c"})
    assert {(m.source, m.target) for m in plan(placement)} == {("b1", "b2")}
    assert all(most(placement, t) == 1 for t in placement.tablets.values())


def test_location_whose_servers_are_all_in_maintenance_keeps_its_share():
    tablets = {f"{n}": PlacedTablet(f"{n}", "t", ("a1", "b1", "c1")) for n in range(6)}
    placement = Placement({"a1": "a", "b1": "b", "b2": "b"}, tablets, {"c1": "c"})
    list(plan(placement))
    assert all(most(placement, t) == 1 for t in placement.tablets.values())


def test_servers_that_take_no_replicas_get_none_and_keep_theirs():
    tablets = {f"{n}": PlacedTablet(f"{n}", "t", ("old",)) for n in range(6)}
    tablets["7"] = PlacedTablet("7", "t", ("s1",))
    assert list(plan(Placement({"s1": "", "s2": ""}, tablets))) == []


def test_many_tablets_are_planned_in_seconds():
    servers = {f"s{n}": "" for n in range(12)}
    tablets = {
        f"{n}": PlacedTablet(f"{n}", f"t{n % 40}", ("s0", "s1", "s2"), "s0") for n in range(600)
    }
    placement = Placement(servers, tablets)
    assert len(list(plan(placement))) == 1350
    assert max(placement.totals.values()) == 150
