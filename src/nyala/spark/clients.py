"""The client of a process of Spark, kept between tasks and between the planning of jobs."""

from nyala.client.client import Client
from nyala.client.connection import shared

TIMEOUT_MS = 120_000
"""Deadline of the calls of a task that writes, and of a commit."""


def process_client(masters: str) -> Client:
    """Return this process' client of a cluster, which is never closed. Any thread.

    Spark uses a Python worker for many tasks, and one for the planning of many jobs: connecting again each
    time would take longer than most plans.

    Args:
        masters: addresses of the masters.

    Raises:
        Unavailable: no master answers.
    """
    return Client(shared(masters))


def writing_client(masters: str) -> Client:
    """Return this process' client of a cluster for writes, which has a deadline of `TIMEOUT_MS`.

    It is kept as that of `process_client`. Raises as that.

    Args:
        masters: addresses of the masters.
    """
    return Client(shared(masters, TIMEOUT_MS))
