"""`nyala pipeline NAME`: jobs and data pipelines on Spark."""

import json
import os
from pathlib import Path
from typing import Annotated

import typer

from nyala.cli.output import MastersOption, fail, local_masters, stays, verb

StandbyOption = Annotated[
    bool,
    typer.Option(
        "--standby", help="Wait while another driver is active; take over when it has ended early."
    ),
]

app = typer.Typer(
    no_args_is_help=True, help="Data pipelines on Spark; they need the extra `spark`."
)


@app.callback()
def _group() -> None:
    """Data pipelines on Spark; require the extra `spark`."""


def _no_spark(err: ImportError) -> typer.Exit:
    """Print what the commands of this group need; return the exception to raise."""
    return fail(
        f"the commands of `nyala pipeline`, and their --help, need PySpark ({err}): "
        "pip install 'nyala[spark]', and Java 17 or newer. Without Spark, `nyala backup` and "
        "`nyala restore` back up tables, and `nyala table` reads and changes them",
        2,
    )


@app.command("flights")
@verb
@stays(
    "slices that were written stay: with --standby the same command goes on, else drop the tables first"
)
def flights(
    masters: MastersOption = "",
    slices: Annotated[int, typer.Option(help="Number of slices in which the year is loaded.")] = 8,
    data: Annotated[
        Path | None,
        typer.Option(help="Folder of raw CSV files; the year that ships with nyala if not given."),
    ] = None,
    tablets: Annotated[int, typer.Option(help="Hash buckets of the flights table.")] = 4,
    replicas: Annotated[int, typer.Option(help="Replicas of each tablet; odd.")] = 3,
    standby: StandbyOption = False,
    work: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the queries' files and checkpoints, the same for all stand-by drivers; one of "
            "this user in the folder for temporary files if not given."
        ),
    ] = None,
) -> None:
    """Load a year of flights as a stream of changes, and statistics that follow it."""
    try:
        from nyala.spark.flights.pipeline import run_pipeline
    except ImportError as err:
        raise _no_spark(err) from None
    run_pipeline(
        masters, slices=slices, tablets=tablets, replicas=replicas, folder=data, standby=standby, work=work,
    )  # fmt: skip


@app.command("run")
@verb
@stays("steps that are done stay, and what the present one has written: run the command again")
def run(
    program: Annotated[
        str,
        typer.Argument(help="File nightly.py or module jobs.nightly, and :NAME of the pipeline."),
    ],
    masters: MastersOption = "",
    standby: StandbyOption = False,
    run_id: Annotated[
        str, typer.Option(help="Id of the run; one that has ended is not run again.")
    ] = "",
    anew: Annotated[
        bool, typer.Option("--anew", help="Begin a new run, whatever was done of the present one.")
    ] = False,
) -> None:
    """Run the pipeline of a program: the steps that are left of its present run, or a new run."""
    try:
        from nyala.spark.pipelines.programs import load_pipeline
    except ImportError as err:
        raise _no_spark(err) from None
    pipeline = load_pipeline(program)
    done = pipeline.run(standby=standby, run=run_id, anew=anew, masters=masters)
    print(json.dumps({"run": done.id, "results": done.results, "own_steps": done.own_steps}))


JOBS = {
    "import": "Import CSV, JSON lines or Parquet files into a table.",
    "export": "Export a table to a folder of CSV, JSON lines or Parquet files.",
    "copy": "Copy a table; with --follow, keep the copy current.",
    "compare": "Compare two tables, or a table and Parquet files: which keys differ.",
    "checksum": "Print number and checksum of the rows of a table.",
    "generate": "Write rows to a table that a seed determines.",
    "verify": "Verify the linked lists of a table; with --load, write them first.",
    "backup": "Back up tables, as nyala backup does, with Spark's tasks.",
    "restore": "Restore a table, as nyala restore does, with Spark's tasks.",
}
"""The jobs of `nyala.spark.jobs.commands`, which parse their own arguments; `NAME --help` lists these."""


def _add_job(name: str, help: str) -> None:
    """Add the command of a job.

    Args:
        name: of the job.
        help: one line about it.
    """
    own = {"allow_extra_args": True, "ignore_unknown_options": True}

    @app.command(name, help=help, context_settings=own, add_help_option=False)
    @verb
    @stays("the job has not begun")
    def job(context: typer.Context) -> None:
        words = context.args
        try:
            from nyala.spark.jobs.commands import main
            from nyala.spark.session import spark_session
        except ImportError as err:
            raise _no_spark(err) from None
        named = any(w in ("-h", "--help") or w.startswith("--masters") for w in words)
        known = "" if named else os.environ.get("NYALA_MASTERS", "") or local_masters("")
        status = main(
            [name, *words], "nyala pipeline", known, lambda: spark_session(f"nyala {name}")
        )
        raise typer.Exit(status)


for _name, _help in JOBS.items():
    _add_job(_name, _help)
