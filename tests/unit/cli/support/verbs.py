"""Runs verbs of `nyala` in the process of a test."""

import functools

import typer.testing
from typer.main import get_command
from typer.testing import CliRunner

from nyala.cli.main import app

# Typer makes all commands of an application anew for each call, which takes longer than most verbs.
vars(typer.testing)["_get_command"] = functools.cache(get_command)


def nyala(*words: object, answer: str = "") -> tuple[int, str, str]:
    """(exit status, standard output, standard error)"""
    done = CliRunner().invoke(app, [*map(str, words)], input=answer)
    return done.exit_code, done.stdout, done.stderr


def fs(*words: object) -> tuple[int, str, str]:
    return nyala("fs", *words)
