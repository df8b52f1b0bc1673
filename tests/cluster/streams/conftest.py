"""A leader that fails under a stream, and is started again later."""

from collections.abc import Callable, Iterator

import pytest

from nyala.testing import MiniCluster
from tests.cluster.support import leading

TABLE = "streamed"
FAULT_AT, END_AT = 8, 28
"""Numbers of the batches before which a leader fails, and before which it is started again."""
FAULTS = {
    "kill": (MiniCluster.kill, MiniCluster.start),
    "pause": (MiniCluster.pause, MiniCluster.resume),
}


@pytest.fixture(params=["kill", pytest.param("pause", marks=pytest.mark.full)])
def fault(request, cluster: MiniCluster) -> Iterator[Callable[[int], None]]:
    """A function of the number of a batch, which fails a leader of `TABLE` and starts it again."""
    fail, restore = FAULTS[request.param]
    failed: list[str] = []

    def at(number: int) -> None:
        if number == FAULT_AT:
            failed.append(next(iter(leading.leaders(cluster, TABLE).values())))
            fail(cluster, failed[0])
        elif number == END_AT and failed:
            restore(cluster, failed.pop())

    yield at
    for name in failed:
        restore(cluster, name)
