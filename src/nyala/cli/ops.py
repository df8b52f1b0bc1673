"""`nyala ops`: the leader master's current operations on the catalog, and its memory."""

import json
from typing import Annotated

import typer

from nyala.cli.output import Format, FormatOption, MastersOption, print_json, show, verb

MOST = (1 << 32) - 1
COLUMNS = ("number", "operation", "subject", "step", "committed", "locks", "age_ms", "commit_point")


@verb
def ops(
    masters: MastersOption = "",
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
    """List the operations in flight, and replica moves in progress: step, locks, commit point."""
    from nyala.operate.run import ask_leader
    from nyala.wire import methods
    from nyala.wire.proto import nyala_pb2 as pb

    request = pb.InspectMasterRequest(maps=maps, limit=limit, offset=offset)
    answer = ask_leader(masters, methods.INSPECT_MASTER, request)
    if maps:
        print_json(json.loads(answer.maps))
        return
    rows: list[tuple[object, ...]] = [
        (o.number, o.what, o.subject, o.step, o.committed, " ".join(o.locks), o.age_ms, "the batch")
        for o in answer.operations
    ]
    rows += [
        (None, o.what, o.subject, o.step, True, None, None, o.commit_point)
        for o in answer.long_operations
    ]
    show(COLUMNS, rows, format)
