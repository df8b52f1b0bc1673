"""`nyala txn abort`: what it says by the answers of the leader master."""

import asyncio
from types import SimpleNamespace
from unittest.mock import AsyncMock

import pytest
from typer.testing import CliRunner

from nyala.cli.main import app
from nyala.cli.transactions import txn as verbs
from nyala.client.core import ClientOptions
from nyala.operate import transactions
from nyala.operate.transactions import TransactionView
from nyala.wire.proto import transactions_pb2 as txn

REMOVED = 1_800_000_000_000_000 << 12
"""A hybrid time."""


@pytest.fixture
def abort(monkeypatch):
    """Return a function that runs the verb against a leader master with one answer."""
    view = TransactionView("ab12", "staged", tablets=["t"])
    monkeypatch.setattr(transactions, "find", AsyncMock(return_value=view))

    def run(**answer):
        masters = SimpleNamespace(change=AsyncMock(return_value=txn.TxnOutcome(**answer)))
        core = SimpleNamespace(masters=masters, options=ClientOptions())
        monkeypatch.setattr(verbs, "connected", lambda _, work: asyncio.run(work(core)))
        return CliRunner().invoke(app, ["txn", "abort", "ab", "--masters", "127.0.0.1:1"])

    return run


def test_aborted_transaction(abort):
    found = abort(kind=txn.TxnOutcome.DENIED)
    assert (found.exit_code, "transaction ab12 is aborted" in found.output) == (0, True)


def test_transaction_whose_decision_may_have_been_removed(abort):
    found = abort(kind=txn.TxnOutcome.UNKNOWN, at=REMOVED)
    assert found.exit_code == 0
    assert f"(hybrid time {REMOVED})" in found.output
    assert "is aborted" not in found.output


def test_master_of_an_earlier_version_ends_no_transaction(abort):
    found = abort(kind=txn.TxnOutcome.UNKNOWN)
    assert found.exit_code != 0
    assert "was not ended by this command" in found.output
    assert "earlier version" in found.output
    assert "is aborted" not in found.output


def test_committed_transaction_stays(abort):
    found = abort(kind=txn.TxnOutcome.COMMITTED, at=REMOVED)
    assert found.exit_code != 0
    assert "is committed" in found.output
