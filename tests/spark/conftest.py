"""One small cluster, with certificates, and one local Spark session for the whole tier."""

import pytest

from nyala.spark.session import spark_session
from nyala.testing import MiniCluster


@pytest.fixture(scope="session")
def cluster():
    with MiniCluster(1, 1, secure=True) as made:
        yield made


@pytest.fixture(scope="session")
def client(cluster):
    with cluster.connect() as made:
        yield made


@pytest.fixture(scope="session")
def spark():
    made = spark_session("nyala tests")
    yield made
    made.stop()
