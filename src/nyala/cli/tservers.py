"""`nyala tserver list`, `will` and `state`: tablet servers as known to the leader master."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from nyala.cli.output import SERVERS, Format, FormatOption, MastersOption, say, show, stays, verb
from nyala.common.errors import NotFound
from nyala.common.texts.counted import counted

if TYPE_CHECKING:
    from nyala.client.core import ClientCore

TIMEOUT_MS = 15_000
LISTED = ("uuid", "address", "location", "version", "replicas", "state", "changed_in", "knows")
STANDBY_COLUMNS = ("uuid", "tablet", "table", "standby", "address")

state = typer.Typer(no_args_is_help=True, help="Servers in maintenance.")
Server = Annotated[str, typer.Argument(help="Uuid, a prefix of it, or the public address.")]


def register(group: typer.Typer) -> None:
    """Add the commands to `nyala tserver`."""
    group.command("list")(tserver_list)
    group.command("will")(will)
    group.command("decommission")(decommission)
    group.command("unregister")(unregister)
    group.add_typer(state, name="state")


def _call_leader(masters: str, *calls: Any) -> list[Any]:
    """Call the leader master with pairs of method and request (or a function of the earlier responses)."""
    from nyala.operate.run import connected
    from nyala.wire import methods

    async def work(core: "ClientCore") -> list[Any]:
        answers: list[Any] = []
        for method, request in calls:
            made = request(answers) if callable(request) else request
            reads = method in (methods.LIST_SERVERS, methods.STANDBY_PLANS)
            call = core.masters.call if reads else core.masters.change
            answers.append(await call(method, made, timeout_ms=TIMEOUT_MS))
        return answers

    return connected(masters, work)


def _servers() -> tuple[Any, Any]:
    from nyala.wire import methods
    from nyala.wire.proto import nyala_pb2 as pb

    return methods.LIST_SERVERS, pb.ListServersRequest()


def _tservers(answer: Any) -> list[Any]:
    return [s for s in answer.servers if s.role == "tserver"]


def _found(answer: Any, named: str) -> str:
    """Return the id of the one matching tablet server.

    Raises:
        NotFound: none, or more than one.
    """
    servers = _tservers(answer)
    meant = [s.uuid for s in servers if s.address == named or (named and s.uuid.startswith(named))]
    if len(meant) == 1:
        return str(meant[0])
    if len(named) == 32 and not meant:
        return named  # no heartbeat since the master started
    listed = ", ".join(f"{s.uuid} at {s.address}" for s in servers) or "none"
    raise NotFound(f"{len(meant) or 'no'} tablet servers match {named!r}; known are: {listed}")


@verb
def tserver_list(masters: MastersOption = "", format: FormatOption = Format.TABLE) -> None:
    """List the tablet servers: alive, in maintenance or decommissioned.

    Each change has a version of the list: `changed_in` is that of a server's last change, `knows` the version
    that the server has.
    """
    (answer,) = _call_leader(masters, _servers())
    rows = [
        (s.uuid, s.address, s.location, s.version, s.replicas, _state(s), s.list_version, s.known_version)
        for s in _tservers(answer)
    ]  # fmt: skip
    show(LISTED, rows, format)


def _state(server: Any) -> str:
    words = ["ALIVE" if server.alive else "DEAD"]
    if server.maintenance:
        words.append("IN MAINTENANCE")
    if server.decommission:
        words.append("DECOMMISSIONING" if server.replicas else "DECOMMISSIONED")
    return ", ".join(words)


@verb
def will(
    server: Annotated[str, typer.Argument(help="Tablet server; all if not given.")] = "",
    masters: MastersOption = "",
    format: FormatOption = Format.TABLE,
) -> None:
    """Show which servers would get a server's replicas if it failed now."""
    from nyala.wire import methods
    from nyala.wire.proto import nyala_pb2 as pb

    def wanted(answers: list[Any]) -> pb.StandbyPlansRequest:
        return pb.StandbyPlansRequest(uuids=[_found(answers[0], server)] if server else [])

    servers, answer = _call_leader(masters, _servers(), (methods.STANDBY_PLANS, wanted))
    addresses = {s.uuid: s.address for s in servers.servers}
    rows = [
        (w.uuid, b.tablet_id, b.table_name, b.standby or None, addresses.get(b.standby))
        for w in answer.plans
        for b in w.standbys
    ]
    show(STANDBY_COLUMNS, rows, format)


@verb
@stays(SERVERS)
def decommission(
    server: Server,
    masters: MastersOption = "",
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Cancel: the server may have replicas again.")
    ] = False,
) -> None:
    """Decommission a server: its replicas are moved to others, and it gets no new ones.

    The leader master moves one replica after another, also after a change of leader; `nyala ops` shows the
    progress.
    """
    from nyala.wire import methods
    from nyala.wire.proto import nyala_pb2 as pb

    def wanted(answers: list[Any]) -> pb.SetDecommissionRequest:
        return pb.SetDecommissionRequest(uuid=_found(answers[0], server), on=not cancel)

    _, answer = _call_leader(masters, _servers(), (methods.SET_DECOMMISSION, wanted))
    outcome = (
        "may have replicas again"
        if cancel
        else f"is being decommissioned: {counted(answer.replicas, 'replica')} to move"
    )
    say(f"tablet server {server} {outcome}")


@verb
@stays(SERVERS)
def unregister(server: Server, masters: MastersOption = "") -> None:
    """Remove a stopped server without replicas from the lists; if it starts again it is listed again.

    It is refused while the server is alive or is a member of a tablet: decommission it first.
    """
    from nyala.wire import methods
    from nyala.wire.proto import nyala_pb2 as pb

    def wanted(answers: list[Any]) -> pb.UnregisterServerRequest:
        return pb.UnregisterServerRequest(uuid=_found(answers[0], server))

    _call_leader(masters, _servers(), (methods.UNREGISTER_SERVER, wanted))
    say(f"tablet server {server} is unregistered")


def _set(masters: str, server: str, *, on: bool) -> None:
    from nyala.wire import methods
    from nyala.wire.proto import nyala_pb2 as pb

    def wanted(answers: list[Any]) -> pb.SetMaintenanceRequest:
        return pb.SetMaintenanceRequest(uuid=_found(answers[0], server), on=on)

    _call_leader(masters, _servers(), (methods.SET_MAINTENANCE, wanted))
    say(f"tablet server {server} is {'in' if on else 'no longer in'} maintenance")


@state.callback()
def _group() -> None:
    """Maintenance mode of servers."""


@state.command("enter_maintenance")
@verb
@stays(SERVERS)
def enter_maintenance(server: Server, masters: MastersOption = "") -> None:
    """Keep a server's replicas while it is down for maintenance; it gets no new ones."""
    _set(masters, server, on=True)


@state.command("exit_maintenance")
@verb
@stays(SERVERS)
def exit_maintenance(server: Server, masters: MastersOption = "") -> None:
    """End a server's maintenance: its replicas are replaced again if it stays down."""
    _set(masters, server, on=False)
