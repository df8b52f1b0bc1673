"""Fixtures of the tests of the log."""

import logging

import pytest


@pytest.fixture
def quiet():
    logging.getLogger("nyala.wal").setLevel(logging.CRITICAL)
    yield
    logging.getLogger("nyala.wal").setLevel(logging.NOTSET)
