import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nyala.common.errors import InvalidArgument
from nyala.common.ids import ServerUuid
from nyala.master.ddl.placement import Candidate, place


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
def test_servers_of_a_tablet_are_distinct(loads, tablets, replicas, rng):
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


def test_small_table_is_placed_on_empty_server_and_large_table_is_spread():
    servers, rng = candidates(0, 100, 100, 100), random.Random(5)
    small = Counter(place(servers, 1, 1, rng)[0][0] for _ in range(40))
    assert small[ServerUuid("s0")] > 15, small
    large = Counter(server for chosen in place(servers, 40, 1, rng) for server in chosen)
    assert max(large.values()) - min(large.values()) <= 4, large


SPREAD = 8
"""Largest difference of replicas between two servers, as expected of the choice between two servers."""


@settings(max_examples=60)
@given(
    st.lists(st.integers(0, 300), min_size=3, max_size=12),
    st.integers(1, 150),
    st.sampled_from([1, 3]),
    st.integers(0, 10**6),
)
def test_table_is_spread_evenly_regardless_of_existing_load(loads, tablets, replicas, seed):
    placed = place(candidates(*loads), tablets, replicas, random.Random(seed))
    counts = Counter({ServerUuid(f"s{n}"): 0 for n in range(len(loads))})
    counts.update(server for servers in placed for server in servers)
    assert max(counts.values()) - min(counts.values()) <= SPREAD, counts


@settings(max_examples=30)
@given(st.integers(3, 12), st.integers(40, 120), st.integers(0, 10**6))
def test_many_small_tables_are_spread_evenly_too(servers, tables, seed):
    loads, rng = [0] * servers, random.Random(seed)
    for _ in range(tables):
        for chosen in place(candidates(*loads), 2, 3, rng):
            for server in chosen:
                loads[int(server[1:])] += 1
    assert max(loads) - min(loads) <= SPREAD, loads


def test_added_range_is_placed_on_servers_with_fewest_replicas_of_the_table():
    servers = [
        Candidate(ServerUuid(name), "", replicas, of_table)
        for name, replicas, of_table in (("a", 9, 9), ("b", 500, 0), ("c", 500, 9))
    ]
    counts = Counter(place(servers, 1, 1, random.Random(n))[0][0] for n in range(30))
    assert counts[ServerUuid("b")] > 15, counts


def test_placement_is_deterministic_for_a_random_source_and_independent_of_server_order():
    servers = candidates(4, 2, 9, 1, 0)
    one = place(servers, 10, 3, random.Random(11))
    assert place(servers[::-1], 10, 3, random.Random(11)) == one
