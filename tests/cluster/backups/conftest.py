"""One small cluster for the tests of backups, and a folder for each of them."""

import pytest

from nyala.client import Client
from nyala.client.connection import Connection
from nyala.client.core import ClientOptions
from nyala.testing import MiniCluster
from tests.cluster.backups.chains import Backups


@pytest.fixture(scope="package")
def cluster():
    with MiniCluster(1, 1) as made:
        yield made


@pytest.fixture(scope="package")
def connection(cluster):
    made = Connection(cluster.masters, ClientOptions())
    yield made
    made.close()


@pytest.fixture
def backups(connection, tmp_path):
    made = Backups(connection, Client(connection), tmp_path / "backups")
    yield made
    for name in made.client.tables():
        made.client.drop_table(name)
