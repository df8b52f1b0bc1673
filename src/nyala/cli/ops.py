"""`nyala ops` and `nyala ops show`: operations of the masters under way, and the leader's memory."""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from nyala.cli.output import (
    DEFAULT_DIR,
    Format,
    FormatOption,
    MastersOption,
    fail,
    local_masters,
    print_json,
    show,
    verb,
)

if TYPE_CHECKING:
    from nyala.wire.proto import nyala_pb2 as pb

MOST = (1 << 32) - 1
COLUMNS = (
    "id", "operation", "subject", "step", "committed", "locks", "age_ms", "commit_point", "waits_for",
    "more_waits",
)  # fmt: skip
WAITS = (
    "waits_for",
    "tablet",
    "server",
    "address",
    "since_ms",
    "attempts",
    "unanswered",
    "last_error",
)

app = typer.Typer(invoke_without_command=True)
ListMastersOption = Annotated[
    str,
    typer.Option(
        "--masters",
        envvar="NYALA_MASTERS",
        show_default=False,
        help=f"host:port,...; not given: the local cluster in {DEFAULT_DIR}.",
    ),
]
"""`MastersOption` of a group, which resolves the default only when no command of the group does it."""
Id = Annotated[str, typer.Argument(help="Id of the operation, as `nyala ops` lists it.")]


@app.callback()
@verb
def ops(
    context: typer.Context,
    masters: ListMastersOption = "",
    maps: Annotated[
        bool, typer.Option("--maps", help="Print the leader's whole catalog state as JSON instead.")
    ] = False,
    limit: Annotated[
        int,
        typer.Option(
            min=1,
            max=2000,
            help="Maximum entries of each map; the number of omitted ones is printed.",
        ),
    ] = 1000,
    offset: Annotated[int, typer.Option(min=0, max=MOST, help="Entries of each map to skip.")] = 0,
    format: FormatOption = Format.TABLE,
) -> None:
    """List the operations under way: step, locks, commit point, and the first thing that each waits for.

    Those with an id such as alter-TABLE are recorded in the catalog: each later leader master continues them
    under the same id. Those with an id TERM.NUMBER are the present leader's, and are not recorded yet.
    """
    from nyala.operate.run import ask_leader
    from nyala.wire import methods
    from nyala.wire.proto import nyala_pb2 as pb

    if (below := context.invoked_subcommand) is not None:
        sources = {name: context.get_parameter_source(name) for name in context.params}
        given = [
            name for name, source in sources.items() if source and source.name == "COMMANDLINE"
        ]
        if given:
            late = " ".join(f"--{name}" for name in given)
            raise fail(
                f"{late} is an option of the list, and {below} would not obey it; give the options of "
                f"`nyala ops {below}` after its name",
                2,
            )
        return
    request = pb.InspectMasterRequest(maps=maps, limit=limit, offset=offset)
    answer = ask_leader(local_masters(masters), methods.INSPECT_MASTER, request)
    if maps:
        print_json(json.loads(answer.maps))
        return
    show(COLUMNS, _rows(answer), format)


@app.command("show")
@verb
def show_(operation: Id, masters: MastersOption = "", format: FormatOption = Format.TABLE) -> None:
    """Show all that an operation waits for: which call to which server, since when, its last error.

    At most 1,000 waits are listed. An operation that is complete is not found.
    """
    from nyala.operate.run import ask_leader
    from nyala.wire import methods
    from nyala.wire.proto import nyala_pb2 as pb

    answer = ask_leader(
        masters, methods.INSPECT_MASTER, pb.InspectMasterRequest(operation=operation)
    )
    (row,) = _rows(answer)
    found: pb.OperationInFlight | pb.LongOperation = [*answer.operations, *answer.long_operations][
        0
    ]
    waits = [
        (w.what, w.tablet_id, w.server, w.address, w.since_ms or None, w.attempts or None, w.unanswered,
         w.last_error)
        for w in found.waits
    ]  # fmt: skip
    if format is Format.JSON:
        shown = dict(zip(COLUMNS, row, strict=True))
        shown["waits_for"] = [dict(zip(WAITS, wait, strict=True)) for wait in waits]
        print_json(shown)
        return
    state = "committed" if row[4] else "not committed"
    more = f" ({found.more_waits} more waits)" if found.more_waits else ""
    show(WAITS, waits, format, title=f"{found.what} {found.subject}: {found.step}; {state}{more}")


def _rows(answer: "pb.InspectMasterResponse") -> list[tuple[object, ...]]:
    """Return a row for each operation of an answer."""
    rows: list[tuple[object, ...]] = [
        (o.id, o.what, o.subject, o.step, o.committed, " ".join(o.locks), o.age_ms, "the batch",
         _first(o), o.more_waits)
        for o in answer.operations
    ]  # fmt: skip
    rows += [
        (o.id, o.what, o.subject, o.step, True, None, None, o.commit_point, _first(o), o.more_waits)
        for o in answer.long_operations
    ]
    return rows


def _first(operation: "pb.OperationInFlight | pb.LongOperation") -> str:
    """Return the first thing that an operation waits for, as a text."""
    return next((f"{w.what} at {w.address}" if w.address else w.what for w in operation.waits), "")
