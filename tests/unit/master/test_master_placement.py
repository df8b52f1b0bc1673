import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nyala.common.errors import InvalidArgument
from nyala.common.ids import ServerUuid
from nyala.master.placement import Candidate, place


def candidates(*loads: int, locations: tuple[str, ...] = ()) -> list[Candidate]:
    padded = locations or ("",) * len(loads)
    return [
        Candidate(ServerUuid(f"s{n}"), where, load)
        for n, (load, where) in enumerate(zip(loads, padded, strict=True))
    ]


def test_more_replicas_than_live_servers_names_both_numbers():
    with pytest.raises(
        InvalidArgument, match=r"3 replicas need 3 live tablet servers, and 2 are live"
    ):
        place(candidates(0, 0), 1, 3, random.Random(1))


@given(
    st.lists(st.integers(0, 50), min_size=3, max_size=9),
    st.integers(1, 20),
    st.integers(1, 3),
    st.randoms(use_true_random=False),
)
def test_the_servers_of_a_tablet_are_distinct(loads, tablets, replicas, rng):
    placed = place(candidates(*loads), tablets, replicas, rng)
    assert [len(set(servers)) for servers in placed] == [replicas] * tablets


def test_locations_are_distinct_as_long_as_there_are_any():
    racks = ("r1", "r1", "r1", "r2", "r3")
    where = {f"s{n}": rack for n, rack in enumerate(racks)}
    for servers in place(candidates(*(0,) * 5, locations=racks), 50, 3, random.Random(3)):
        assert {where[s] for s in servers} == {"r1", "r2", "r3"}
    two = ("r1", "r1", "r2")
    placed = place(candidates(0, 0, 0, locations=two), 5, 3, random.Random(3))
    assert [len(set(s)) for s in placed] == [3] * 5


def test_an_empty_server_takes_its_share_and_the_full_one_is_spared():
    placed = place(candidates(0, 100, 100, 100), 40, 1, random.Random(5))
    counts = Counter(server for servers in placed for server in servers)
    fullest = max(counts[ServerUuid(s)] for s in ("s1", "s2", "s3"))
    assert counts[ServerUuid("s0")] > 2 * fullest


def test_two_choices_spread_evenly():
    placed = place(candidates(*(0,) * 6), 200, 3, random.Random(7))
    counts = Counter(server for servers in placed for server in servers)
    assert max(counts.values()) - min(counts.values()) <= 6, counts


def test_the_same_random_source_places_the_same_whatever_the_order_of_servers():
    servers = candidates(4, 2, 9, 1, 0)
    one = place(servers, 10, 3, random.Random(11))
    assert place(servers[::-1], 10, 3, random.Random(11)) == one
