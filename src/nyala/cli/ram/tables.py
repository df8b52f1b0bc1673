"""`nyala ram create|drop|split|tables|servers|will|log|dump`."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nyala.cli.output import Format, FormatOption, MastersOption, show, stays, verb
from nyala.cli.ram.run import DEFAULT_ENSEMBLE, DEFAULT_JOURNAL, EnsembleName, JournalName
from nyala.common.texts.counted import counted

if TYPE_CHECKING:
    from nyala.client.connection import Connection
    from nyala.client.journal.coroutines import JournalCoroutines
    from nyala.env.rpc import Method

app = typer.Typer()
Name = Annotated[str, typer.Argument(help="Name of the table.")]
COMPLETED = "what was sent may still take effect: nyala ram tables shows it"
TIMEOUT_S = 10.0
"""Time for a command; after the loss of a leader another one is established within 8 s."""
UNNAMED_MS = 1_500
"""Time after which a command ends if the journal names no leader; one that resigns is replaced sooner."""
Timeout = Annotated[
    float, typer.Option("--timeout", min=0.1, help="Seconds after which the command fails.")
]


@contextmanager
def opened(
    masters: str, journal: str, timeout_s: float
) -> Iterator[tuple["Connection", "JournalCoroutines"]]:
    """Open the journal of an ensemble.

    Args:
        masters: addresses of the masters.
        journal: name of the journal.
        timeout_s: for each request to it.
    """
    from nyala.client.connection import Connection
    from nyala.client.core import ClientOptions
    from nyala.client.journal.core import JournalCore
    from nyala.client.journal.coroutines import JournalCoroutines
    from nyala.common.errors import NotFound

    connection = Connection(masters, ClientOptions(timeout_ms=int(timeout_s * 1000)))
    try:
        core = JournalCore(connection.core)
        try:
            found = connection.run(core.open(journal))
        except NotFound as err:
            raise NotFound(f"{err.message}; an ensemble is started with: nyala ram up") from err
        yield connection, JournalCoroutines(core, found)
    finally:
        connection.close()


def ask(
    masters: str, journal: str, ensemble: str, timeout_s: float, method: "Method", request: Any
) -> Any:
    """Send a request to the coordinator that leads; return its answer.

    Args:
        masters: addresses of the masters.
        journal: name of the journal.
        ensemble: name of the ensemble.
        timeout_s: for all tries.
        method: of the coordinator.
        request: its message.
    """
    from nyala.ram.calls import EnsembleClient
    from nyala.ram.coordinator import leader_address

    with opened(masters, journal, timeout_s) as (connection, found):
        calls = EnsembleClient(
            connection.core.env, lambda: leader_address(found, ensemble), unnamed_ms=UNNAMED_MS
        )
        return connection.run(calls.call(method, request, int(timeout_s * 1000)))


@app.command("create")
@verb
@stays(COMPLETED)
def create(
    name: Name,
    span: Annotated[int, typer.Option(min=1, help="Number of tablets.")] = 1,
    masters: MastersOption = "",
    journal: JournalName = DEFAULT_JOURNAL,
    ensemble: EnsembleName = DEFAULT_ENSEMBLE,
    timeout: Timeout = TIMEOUT_S,
) -> None:
    """Create a table of the ensemble, with tablets at its servers in turn."""
    from nyala.wire import methods
    from nyala.wire.proto import ram_pb2 as pb

    request = pb.CreateTableRequest(name=name, server_span=span)
    found = ask(masters, journal, ensemble, timeout, methods.RAM_CREATE_TABLE, request)
    print(f"created {name}, id {found.table.id}")


@app.command("drop")
@verb
@stays(COMPLETED)
def drop(
    name: Name,
    masters: MastersOption = "",
    journal: JournalName = DEFAULT_JOURNAL,
    ensemble: EnsembleName = DEFAULT_ENSEMBLE,
    timeout: Timeout = TIMEOUT_S,
    yes: Annotated[bool, typer.Option("--yes", help="Skip the confirmation.")] = False,
) -> None:
    """Drop a table of the ensemble."""
    from nyala.cli.journal.journals import confirm
    from nyala.ram.checks import check_name
    from nyala.wire import methods
    from nyala.wire.proto import ram_pb2 as pb

    check_name(name)
    wanted = pb.TabletMapRequest(name=name)
    (found,) = ask(masters, journal, ensemble, timeout, methods.RAM_TABLET_MAP, wanted).tables
    confirm(
        f"Drop table {name} of the ensemble, with {counted(len(found.tablets), 'tablet')}?", yes
    )
    request = pb.DropTableRequest(name=name, id=found.id)
    ask(masters, journal, ensemble, timeout, methods.RAM_DROP_TABLE, request)
    print(f"dropped {name}")


@app.command("split")
@verb
@stays(COMPLETED)
def split(
    name: Name,
    split_hash: Annotated[
        str,
        typer.Argument(
            help="Key hash that begins the new tablet: decimal, or 0x and hexadecimal digits."
        ),
    ],
    masters: MastersOption = "",
    journal: JournalName = DEFAULT_JOURNAL,
    ensemble: EnsembleName = DEFAULT_ENSEMBLE,
    timeout: Timeout = TIMEOUT_S,
) -> None:
    """Split a tablet of a table; nothing if a tablet begins with the hash."""
    from nyala.wire import methods
    from nyala.wire.proto import ram_pb2 as pb

    request = pb.SplitTabletRequest(name=name, split_hash=_hash(split_hash))
    found = ask(masters, journal, ensemble, timeout, methods.RAM_SPLIT_TABLET, request)
    print(f"{name} has {counted(len(found.table.tablets), 'tablet')}")


def _hash(text: str) -> int:
    """Return a key hash, as `nyala ram tables` shows it, or decimal."""
    try:
        found = int(text, 16 if text.startswith("0x") else 10)
    except ValueError:
        found = -1
    if not 0 <= found < 1 << 64:
        raise typer.BadParameter(
            f"{text!r} is no hash below 2^64; give a decimal number, or one as nyala ram tables shows: 0x…"
        )
    return found


@app.command("tables")
@verb
def tables(
    masters: MastersOption = "",
    journal: JournalName = DEFAULT_JOURNAL,
    ensemble: EnsembleName = DEFAULT_ENSEMBLE,
    timeout: Timeout = TIMEOUT_S,
    format: FormatOption = Format.TABLE,
) -> None:
    """List the tablets of all tables, each with its server."""
    from nyala.ram.ids import ServerId
    from nyala.wire import methods
    from nyala.wire.proto import ram_pb2 as pb

    found = ask(masters, journal, ensemble, timeout, methods.RAM_TABLET_MAP, pb.TabletMapRequest())
    rows = [
        (t.name, t.id, f"{m.first:#018x}", f"{m.last:#018x}", str(ServerId.of(m.master)))
        for t in found.tables
        for m in t.tablets
    ]
    show(("table", "id", "first", "last", "server"), rows, format)


@app.command("servers")
@verb
def servers(
    masters: MastersOption = "",
    journal: JournalName = DEFAULT_JOURNAL,
    ensemble: EnsembleName = DEFAULT_ENSEMBLE,
    timeout: Timeout = TIMEOUT_S,
    format: FormatOption = Format.TABLE,
) -> None:
    """List the servers of the ensemble."""
    from nyala.ram.ids import ServerId
    from nyala.wire import methods
    from nyala.wire.proto import ram_pb2 as pb

    found = ask(
        masters, journal, ensemble, timeout, methods.RAM_SERVER_LIST, pb.ServerListRequest()
    )
    rows = [
        (str(ServerId.of(s.id)), s.status, s.address, ",".join(s.roles), s.group or None)
        for s in found.servers
    ]
    show(("id", "status", "address", "roles", "group"), rows, format)


@app.command("will")
@verb
def will(
    masters: MastersOption = "",
    journal: JournalName = DEFAULT_JOURNAL,
    ensemble: EnsembleName = DEFAULT_ENSEMBLE,
    timeout: Timeout = TIMEOUT_S,
    format: FormatOption = Format.TABLE,
) -> None:
    """Show into which parts the tablets of each server are divided when it crashes."""
    from nyala.ram.ids import ServerId
    from nyala.wire import methods
    from nyala.wire.proto import ram_pb2 as pb

    found = ask(masters, journal, ensemble, timeout, methods.RAM_WILLS, pb.WillsRequest())
    rows = [
        (str(ServerId.of(w.id)), n, p.table_id, f"{p.first:#018x}", f"{p.last:#018x}", part.bytes)
        for w in found.wills
        for n, part in enumerate(w.parts)
        for p in part.pieces
    ]
    show(("server", "part", "table", "first", "last", "part_bytes"), rows, format)


@app.command("log")
@verb
def log(
    masters: MastersOption = "",
    journal: JournalName = DEFAULT_JOURNAL,
    ensemble: EnsembleName = DEFAULT_ENSEMBLE,
    timeout: Timeout = TIMEOUT_S,
) -> None:
    """Print the valid entries of the coordinator's log, one JSON object a line."""
    from nyala.common.errors import NotFound
    from nyala.ram.state import shown

    with opened(masters, journal, timeout) as (connection, found):
        if not connection.run(found.last_id(ensemble)):
            raise NotFound(
                f"journal {journal!r} has no log {ensemble!r}: no coordinator of such an ensemble has ever "
                f"led; see the logs of this journal: nyala journal logs {journal}"
            )
        for page in connection.iterate_pages(found.entries(ensemble)):
            print(json.dumps({"id": page.id, **shown(page.data)}))


@app.command("dump")
@verb
def dump(
    masters: MastersOption = "",
    journal: JournalName = DEFAULT_JOURNAL,
    ensemble: EnsembleName = DEFAULT_ENSEMBLE,
    timeout: Timeout = TIMEOUT_S,
) -> None:
    """Print the whole state of the coordinator that leads, as JSON."""
    from nyala.wire import methods
    from nyala.wire.proto import ram_pb2 as pb

    found = ask(masters, journal, ensemble, timeout, methods.RAM_DUMP, pb.DumpRequest())
    print(json.dumps({"epoch": found.epoch, **json.loads(found.json)}, indent=2))
