"""raft/quorum.py against a naive implementation that only counts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nyala.common.ids import ServerUuid
from nyala.raft import quorum

UUIDS = [ServerUuid(f"s{i}") for i in range(7)]
voters = st.lists(st.sampled_from(UUIDS), unique=True, max_size=7)


def more_than_half(count, of):
    return count * 2 > of


@given(st.lists(st.integers(0, 9), max_size=7))
def test_reached_is_highest_value_of_a_majority(values):
    good = [n for n in range(10) if more_than_half(sum(v >= n for v in values), len(values))]
    assert quorum.reached(values) == max(good, default=0)


@given(voters, st.dictionaries(st.sampled_from(UUIDS), st.booleans()))
def test_vote_tally_is_decided_when_no_vote_can_change_it(names, votes):
    def won(with_votes):
        return more_than_half(sum(with_votes.get(n) is True for n in names), len(names))

    best = {n: votes.get(n, True) for n in names}
    expected = (
        quorum.Tally.WON if won(votes) else quorum.Tally.PENDING if won(best) else quorum.Tally.LOST
    )
    assert quorum.tally(names, votes) is expected


@given(voters, st.sets(st.sampled_from(UUIDS)))
def test_contains_counts_voters_only(names, present):
    assert quorum.contains(names, present) == more_than_half(
        len([n for n in names if n in present]), len(names)
    )


@given(st.integers(1, 99))
def test_two_majorities_of_a_group_intersect(size):
    assert 2 * quorum.majority(size) > size
    assert 2 * (quorum.majority(size) - 1) <= size


@pytest.mark.parametrize(("size", "faults"), [(1, 0), (3, 1), (5, 2)])
def test_quorum_of_2f_plus_1_members_tolerates_f_faults(size, faults):
    values = [7] * (size - faults) + [0] * faults
    assert quorum.reached(values) == 7
    assert quorum.reached([*values[1:], 0]) == 0
