"""Registration of the data source in sessions, without Spark."""

from typing import Any

import pytest
from pyspark.errors import AnalysisException

from nyala.spark.session import registered
from nyala.spark.source import NyalaSource


def refused(condition: str) -> AnalysisException:
    """Return an error of Spark with a condition."""
    error = AnalysisException(condition)
    error.getCondition = lambda: condition
    return error


class Session:
    """A session that counts registrations.

    Args:
        condition: of the error with which it refuses; empty: it takes the data source.
    """

    def __init__(self, condition: str = "") -> None:
        self.dataSource = self
        self.sources: list[type] = []
        self._condition = condition

    def register(self, source: type) -> None:
        self.sources.append(source)
        if self._condition:
            raise refused(self._condition)


def test_data_source_is_registered_once_in_each_session():
    one: Any = Session()
    two: Any = Session()
    for session in (one, one, two):
        assert registered(session) is session
    assert one.sources == two.sources == [NyalaSource]


def test_session_in_which_spark_has_found_the_data_source_is_taken():
    found: Any = Session("DATA_SOURCE_ALREADY_EXISTS")
    assert registered(found) is found
    other: Any = Session("OTHER")
    with pytest.raises(AnalysisException):
        registered(other)
