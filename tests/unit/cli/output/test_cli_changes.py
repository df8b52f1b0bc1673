"""Verbs that change users, grants, tokens or certificates: the outcome without an answer is unknown."""

import asyncio
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from nyala.cli.main import app
from nyala.common.errors import OutcomeUnknown
from nyala.operate import run

PASSWORD = "correct horse battery\n"
CHANGES = (
    "user add ann --password-stdin", "user passwd ann --password-stdin", "user role ann writer",
    "user disable ann", "user enable ann", "user remove ann", "user grant ann reader --all",
    "user revoke ann --all", "token create", "token revoke 0123", "cert revoke ann", "ca rotate --abort",
)  # fmt: skip


@pytest.mark.parametrize("words", CHANGES)
def test_change_that_was_sent_twice_is_not_reported_as_refused(words, monkeypatch):
    """The second try of `user remove` finds no such user, since the first one has removed it."""

    async def call(*_args, **_kw):
        raise AssertionError("a refusal of the second try counts as one of the first")

    async def change(*_args, **_kw):
        raise OutcomeUnknown("an earlier try was not answered")

    masters = SimpleNamespace(call=call, change=change)

    def connected(_masters, work):
        return asyncio.run(work(SimpleNamespace(masters=masters)))

    monkeypatch.setattr(run, "connected", connected)
    found = CliRunner().invoke(
        app, words.split(), env={"NYALA_MASTERS": "127.0.0.1:1"}, input=PASSWORD
    )
    assert isinstance(found.exception, OutcomeUnknown | SystemExit)
    assert "an earlier try was not answered" in found.output
