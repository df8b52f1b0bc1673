"""A stream whose driver, executor and servers are killed; the soak `stream_restarts` has 100 kills."""

import pytest

from tests.spark.kills import stream_kills


@pytest.mark.full
def test_stream_loses_and_doubles_nothing_when_its_processes_are_killed():
    stream_kills.run(restarts=4, minutes=20, seed=3)
