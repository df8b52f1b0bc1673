"""Two minutes of the hour of `./run soak pins`: one server is permanently down."""

import pytest

from tests.sim.world.loop import run
from tests.unit.replica.anchors_soak import check, scenario


@pytest.mark.full
def test_permanently_dead_server_anchors_neither_log_nor_memory():
    measured = run(lambda loop: scenario(loop, 120), max_time_s=2000)
    assert measured.writes == 600
    check(measured)
