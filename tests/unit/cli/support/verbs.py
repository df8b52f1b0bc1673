"""Runs verbs of `nyala` in the process of a test."""

from typer.testing import CliRunner

from nyala.cli.main import app


def nyala(*words: object, answer: str = "") -> tuple[int, str, str]:
    """(exit status, standard output, standard error)"""
    done = CliRunner().invoke(app, [*map(str, words)], input=answer)
    return done.exit_code, done.stdout, done.stderr


def fs(*words: object) -> tuple[int, str, str]:
    return nyala("fs", *words)
