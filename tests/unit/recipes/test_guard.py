"""Guard: epochs that fall are refused, bad ones named."""

import pytest

from nyala.common.errors import InvalidArgument, StaleEpoch
from nyala.recipes import Guard


@pytest.mark.row("S3.67")
def test_requests_of_replaced_leaders_are_refused():
    guard = Guard(5)
    guard.check(5)
    guard.check(9)
    guard.check(9)
    with pytest.raises(StaleEpoch, match="epoch 5, and one with epoch 9 has been seen") as refused:
        guard.check(5)
    assert refused.value.details == {"epoch": "9"}
    assert guard.epoch == 9


@pytest.mark.parametrize("bad", [-1, 1 << 64, 1.0, "7", None, True])
def test_bad_epoch_is_refused(bad):
    guard = Guard(3)
    with pytest.raises(InvalidArgument, match="give the `epoch` of a Leader"):
        guard.check(bad)
    with pytest.raises(InvalidArgument):
        Guard(bad)
    assert guard.epoch == 3
