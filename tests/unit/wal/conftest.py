"""What the tests of the log share."""

import logging

import pytest


@pytest.fixture
def quiet():
    logging.getLogger("nyala.wal").setLevel(logging.CRITICAL)
    yield
    logging.getLogger("nyala.wal").setLevel(logging.NOTSET)
