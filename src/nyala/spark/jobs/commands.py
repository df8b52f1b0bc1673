"""Command lines of the jobs: each function is a command, with its parameters as arguments and options."""

import argparse
import difflib
import inspect
import json
import re
import signal
import sys
import typing
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, is_dataclass
from typing import Any, NoReturn

from pyspark.errors import PySparkException, PythonException
from pyspark.sql import SparkSession

from nyala.client.calls.connecting import ENVIRONMENT
from nyala.common.errors import InvalidArgument, NyalaError
from nyala.common.hybrid_time import stamp_of_text
from nyala.spark.jobs.backups import backup, restore
from nyala.spark.jobs.comparison import checksum, compare
from nyala.spark.jobs.copy_table import copy
from nyala.spark.jobs.file_export import export_files
from nyala.spark.jobs.file_import import import_files
from nyala.spark.jobs.generated_rows import generate
from nyala.spark.jobs.linked_list import verify
from nyala.spark.jobs.reports import to_standard_error
from nyala.spark.options import split
from nyala.spark.pipelines.jobs import WORK, job_pipeline

JOBS: Mapping[str, Callable[..., Any]] = {
    "import": import_files,
    "export": export_files,
    "copy": copy,
    "compare": compare,
    "checksum": checksum,
    "generate": generate,
    "verify": verify,
    "backup": backup,
    "restore": restore,
}
TIMES = ("at", "other_at")
OF_PROGRAMS = ("spark", "report", "operation")
"""Parameters that are no arguments of a command."""
STANDBY_GOES_ON = "the next driver goes on: another one that waits, or the same command run again"
STANDBY = "wait while another driver runs the same job, and take over when that one has ended early"
FAILED_CHECKS = {"compare": "equal", "verify": "correct"}
"""Field of the result whose False makes the exit status 1."""

WRITTEN_AGAIN = "rows that were written stay: run the command again, which writes the same rows"
ONLY_READS = "the job only reads: nothing stays"
INTERRUPTED_JOBS = {
    "import": "its rows took effect all or not at all; with --no-atomic, some may have. Run the command "
    "again, without --create if the table is there, and without --job-id with another folder for --bad",
    "export": "if the folder has its name, it is whole; else run the command again, which removes what this "
    "one wrote",
    "copy": "rows that were copied stay: run the command again, with --existing",
    "compare": ONLY_READS,
    "checksum": ONLY_READS,
    "generate": WRITTEN_AGAIN,
    "verify": WRITTEN_AGAIN,
    "backup": "the folder has the former backups, and perhaps whole new ones of some tables; the next backup "
    "removes what is not whole",
    "restore": "if a table of the name exists, it is whole; else run the command again, which begins anew",
}
"""Effects that stay of a job that the user interrupts, and the command that completes it."""
INTERRUPTED = 128 + signal.SIGINT
"""Exit status when the user interrupts a job, as of a command that SIGINT ends."""

TASK_ERROR = re.compile(r"^nyala\.[\w.]*?(\w+): (.+)$", re.MULTILINE)
"""Name and message of an error of nyala at the end of a traceback of a task."""
SYSTEM_ERROR = re.compile(r"^\w+: \[Errno \d+\] (.+)$", re.MULTILINE)
"""Message of an error of the operating system there, such as a full disk."""


class Parser(argparse.ArgumentParser):
    """A parser whose errors name the option that is most similar to an unknown one."""

    def error(self, message: str) -> NoReturn:
        """Raise the error."""
        known = [o for action in self._actions for o in action.option_strings]
        for word in re.findall(r"(?<!\S)(--?[\w-]+)", message.partition("unrecognized")[2]):
            near = difflib.get_close_matches(word, known, 1)
            message += f"; did you mean {near[0]}?" if near else ""
        raise InvalidArgument(f"{self.prog}: {message}; see {self.prog} --help")


def parser_of(name: str, program: str) -> Parser:
    """Return the parser of a job's arguments, derived from its function.

    Args:
        name: of the job.
        program: text before it, for messages.
    """
    function = JOBS[name]
    doc = inspect.getdoc(function) or ""
    helps = dict(re.findall(r"^    (\w+): (.*(?:\n        .*)*)", doc, re.M))
    parser = Parser(prog=f"{program} {name}", description=doc.splitlines()[0], allow_abbrev=False)
    hints = typing.get_type_hints(function)
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name in OF_PROGRAMS:
            continue
        text = " ".join(helps.get(parameter.name, "").split()).replace("%", "%%")
        positional = parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
        _add(parser, parameter, hints[parameter.name], text, positional)
    parser.add_argument("--standby", action="store_true", help=STANDBY)
    return parser


def _add(
    parser: Parser, parameter: inspect.Parameter, hint: Any, text: str, positional: bool
) -> None:
    """Add one parameter to a parser.

    Args:
        parser: of the job.
        parameter: of its function.
        hint: its type.
        text: about it.
        positional: it has no name on the command line.
    """
    name = parameter.name
    many = typing.get_origin(hint) is Sequence
    flag = "--" + name.replace("_", "-")
    if positional:
        parser.add_argument(
            name, nargs="+" if many else None, type=int if hint is int else str, help=text
        )
    elif hint is bool:
        parser.add_argument(
            flag, default=parameter.default, action=argparse.BooleanOptionalAction, help=text
        )
    elif name == "masters":
        parser.add_argument(flag, default="", help=text)
    elif many:
        parser.add_argument(flag, default=[], type=split, help=text)
    else:
        kind = stamp_of_text if name in TIMES else int if hint is int else str
        parser.add_argument(flag, default=parameter.default, type=kind, help=text)


def parse(name: str, words: Sequence[str], program: str, masters: str) -> dict[str, Any]:
    """Return the arguments of a job's function for a command line.

    Args:
        name: of the job.
        words: its arguments.
        program: text before the name, for messages.
        masters: addresses, if they are not given.

    Raises:
        InvalidArgument: an unknown job or option, or a missing argument.
    """
    if name not in JOBS:
        near = difflib.get_close_matches(name, JOBS, 1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise InvalidArgument(f"there is no job {name!r}; {hint}The jobs are: {', '.join(JOBS)}")
    arguments = vars(parser_of(name, program).parse_args(list(words)))
    arguments["masters"] = arguments["masters"] or masters
    if not arguments["masters"]:
        raise InvalidArgument(f"name the masters: --masters host:7051,... or {ENVIRONMENT}")
    return arguments


def run(name: str, arguments: Mapping[str, Any], session: Callable[[], SparkSession]) -> bool:
    """Run a job and print its result as JSON; return False if it found a difference or an error in data.

    Args:
        name: of the job.
        arguments: of its function, and `standby`.
        session: makes the session.
    """
    given = dict(arguments)
    standby = given.pop("standby")
    spark = session()
    try:
        if standby:
            pipeline = job_pipeline(name, given, JOBS[name], _plain, to_standard_error)
            result = pipeline.run(spark, standby=True).results[WORK]
        else:
            result = _plain(JOBS[name](spark, **given, report=to_standard_error))
    finally:
        with suppress(KeyboardInterrupt):  # the job has ended
            spark.stop()
    print(json.dumps(result), flush=True)
    return not isinstance(result, dict) or bool(result.get(FAILED_CHECKS.get(name, ""), True))


def _plain(result: Any) -> Any:
    """Return a result as JSON; of elements of a backup the main facts."""
    if isinstance(result, list):
        facts = ("table", "kind", "id", "since", "until", "rows_at_end", "bytes")
        return [{n: getattr(e, n) for n in facts} for e in result]
    return asdict(result) if is_dataclass(result) and not isinstance(result, type) else result


def main(
    words: Sequence[str], program: str, masters: str, session: Callable[[], SparkSession]
) -> int:
    """Run a job by its command line; return the exit status.

    Args:
        words: name and arguments.
        program: text before the name, for messages.
        masters: addresses, if they are not given.
        session: makes the session.
    """
    if not words or words[0] in ("-h", "--help"):
        print(
            f"usage: {program} NAME ...\njobs: {', '.join(JOBS)}\n{program} NAME --help shows more"
        )
        return 0 if words else 2
    try:
        return 0 if run(words[0], parse(words[0], words[1:], program, masters), session) else 1
    except KeyboardInterrupt:
        what = STANDBY_GOES_ON if "--standby" in words else INTERRUPTED_JOBS[words[0]]
        print(f"nyala: interrupted; {what}", file=sys.stderr)
        return INTERRUPTED
    except NyalaError as err:
        print(f"nyala: {err}", file=sys.stderr)
        return 2 if isinstance(err, InvalidArgument) else err.exit_status
    except PySparkException as err:
        system = [
            ("", f"{text}; fix that, and run the job again")
            for text in SYSTEM_ERROR.findall(str(err))
        ]
        found = TASK_ERROR.findall(str(err)) or system
        if not found:
            raise
        kind, text = found[-1]
        what = "a task" if isinstance(err, PythonException) else "the query"
        print(f"nyala: {what} failed: {text}", file=sys.stderr)
        return 2 if kind == InvalidArgument.__name__ else 1
