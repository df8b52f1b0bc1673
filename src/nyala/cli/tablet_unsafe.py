"""`nyala tablet survivors`, `unsafe_change_config`, `unsafe_replace_tablet`: a permanent majority loss."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from nyala.cli.output import (
    STEPS,
    Format,
    FormatOption,
    MastersOption,
    fail,
    print_json,
    say,
    show,
    stays,
    verb,
)
from nyala.common.texts.counted import counted

if TYPE_CHECKING:
    from nyala.env.env import Env
    from nyala.operate.survivors import ServerEndpoint, Survivor
    from nyala.operate.unsafe_config import Outcome, UnsafeConfigPlan


def register(app: typer.Typer) -> None:
    """Add the commands to `nyala tablet`."""
    app.command("survivors")(survivors)
    app.command("unsafe_change_config")(unsafe_change_config)
    app.command("unsafe_replace_tablet")(unsafe_replace_tablet)


@verb
def survivors(
    tablets: Annotated[
        list[str] | None, typer.Argument(help="Tablet ids; none: all without a majority.")
    ] = None,
    masters: MastersOption = "",
    format: FormatOption = Format.TABLE,
) -> None:
    """Show the surviving replicas of tablets, the most up-to-date replica of each first."""
    from nyala.operate.run import run_alone
    from nyala.operate.survivors import has_majority, of_tablets

    wanted = tablets or []

    async def inspect(env: "Env") -> "dict[str, list[Survivor]]":
        found = await of_tablets(env, await _endpoints(env, masters), wanted)
        return {t: alive for t, alive in found.items() if wanted or not has_majority(alive)}

    found = run_alone(inspect, masters)
    rows = [
        _row(t, survivor, has_majority(alive)) for t, alive in found.items() for survivor in alive
    ]
    show(("tablet", "table", "uuid", "address", "state", "role", "last", "committed", "known_commit",
          "config", "pending", "majority"), rows, format)  # fmt: skip
    missing = [t for t in wanted if t not in found]
    if missing:
        raise fail(
            f"no server that answers has a replica of {', '.join(missing)}; see: nyala cluster ksck",
            5,
        )


def _row(tablet: str, survivor: "Survivor", majority: bool) -> tuple[object, ...]:
    pending = survivor.active if survivor.active.id != survivor.committed.id else None
    state = f"{survivor.state} {survivor.error}".strip()
    return (
        tablet, survivor.table, survivor.place.uuid, survivor.place.address, state, survivor.role,
        str(survivor.last), survivor.commit, survivor.known_commit, _config(survivor.committed),
        "" if pending is None else _config(pending), majority,
    )  # fmt: skip


def _config(config: Any) -> str:
    return f"{config.id}: " + " ".join(m.uuid + ("" if m.voter else "'") for m in config.members)


async def _endpoints(env: "Env", masters: str) -> "list[ServerEndpoint]":
    """Return all tablet servers known to the masters."""
    from nyala.operate.run import client_of
    from nyala.operate.survivors import ServerEndpoint

    async with client_of(env, masters) as core:
        listed = await core.servers()
    return [ServerEndpoint(s.uuid, s.address) for s in listed.servers if s.role == "tserver"]


@verb
@stays(STEPS)
def unsafe_change_config(
    tablet: Annotated[str, typer.Argument(help="Tablet id.")],
    server: Annotated[
        str,
        typer.Argument(
            help="Surviving replica that becomes leader: address or uuid of its server."
        ),
    ],
    peer_uuids: Annotated[list[str], typer.Argument(help="Uuids of the members to keep.")],
    masters: MastersOption = "",
    force: Annotated[
        bool, typer.Option("--force", help="Proceed in spite of the printed warnings.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only print what it would do.")
    ] = False,
    format: FormatOption = Format.TABLE,
) -> None:
    """Recover a tablet whose majority is lost from its survivors. Unsafe: read the page first.

    The servers that are removed must be dead and stay so. Operations that only they had are lost.
    """
    from nyala.operate.run import run_alone
    from nyala.operate.unsafe_config import execute, plan

    async def work(env: "Env") -> "tuple[UnsafeConfigPlan, Outcome | None]":
        place = await _endpoint(env, server, masters)
        todo = await plan(env, tablet, place, peer_uuids)
        _print_plan(todo)
        if todo.risks and not (force or todo.done):
            raise fail("nothing was changed; use --force to proceed", 2)
        return todo, None if dry_run else await execute(env, todo)

    servers = f"{server},{masters}" if ":" in server else masters
    todo, outcome = run_alone(work, servers)
    _print_outcome(todo, outcome, format)


async def _endpoint(env: "Env", server: str, masters: str) -> "ServerEndpoint":
    from nyala.operate.survivors import ServerEndpoint

    if ":" in server:
        return ServerEndpoint("", server)
    for place in await _endpoints(env, masters):
        if place.uuid == server:
            return place
    raise fail(f"the masters know no tablet server {server}; give its address", 5)


def _print_plan(todo: "UnsafeConfigPlan") -> None:
    target = todo.target
    say(
        f"tablet {todo.tablet} ({target.table}): committed configuration {_config(target.committed)}"
    )
    if target.active.id != target.committed.id:
        say(f"  a pending change, which will be discarded: {_config(target.active)}")
    say(f"  keep     {' '.join(todo.keep)}")
    say(f"  remove   {' '.join(todo.removed) or 'none'}; their messages will be ignored")
    say(f"  {target.place.uuid} at {target.place.address} has entries up to {target.last}, and knows "
        f"entries up to {target.commit} as committed; the later ones will be")  # fmt: skip
    say("  entries that only removed members had, acknowledged or not, are lost")
    for risk in todo.risks:
        say(f"  BUT {risk}")


def _print_outcome(todo: "UnsafeConfigPlan", outcome: "Outcome | None", format: Format) -> None:
    from nyala.operate.survivors import known_lost

    last = todo.target.last if outcome is None else outcome.last
    lost = None if outcome is not None and not outcome.changed else known_lost(todo.known, last)
    if format is Format.JSON:
        facts = {
            "tablet": todo.tablet, "server": todo.target.place.uuid, "keep": list(todo.keep),
            "removed": list(todo.removed), "last": str(last), "known_lost": lost and list(lost),
            "changed": outcome is not None and outcome.changed,
            "config": outcome and str(outcome.config), "risks": list(todo.risks),
        }  # fmt: skip
        print_json(facts)
        return
    if outcome is None:
        print("nothing was changed: --dry-run")
    elif not outcome.changed:
        print(f"nothing to do: the configuration of {outcome.config} is this one already")
    else:
        print(
            f"the configuration of {outcome.config} is committed; {counted(len(todo.keep), 'member')} left"
        )
        what = "no entry" if lost is None else f"entries {lost[0]} to {lost[1]}"
        print(f"known to be lost after {last}: {what}; the removed members may have had more")


@verb
@stays(STEPS)
def unsafe_replace_tablet(
    tablet: Annotated[str, typer.Argument(help="Tablet id.")],
    masters: MastersOption = "",
    force: Annotated[
        bool, typer.Option("--force", help="Also discard replicas that exist and work.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only print what it would do.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Skip the confirmation.")] = False,
    format: FormatOption = Format.TABLE,
) -> None:
    """Replace a tablet whose replicas are all lost by an empty one. Unsafe: read the page first.

    All rows of its key range are lost. Other tablets of the table are not affected.
    """
    from nyala.operate.tablet_replace import inspect, replace

    seen = inspect(masters, tablet)
    for line in seen.description:
        say(line)
    changed = False
    if not (seen.done or dry_run):
        if seen.shown and not force:
            raise fail("nothing was changed; use --force to discard them", 2)
        if not yes and not typer.confirm(f"Discard all rows of tablet {tablet}?", err=True):
            raise fail("nothing was changed", 1)
        seen, changed = replace(masters, tablet, force=force), True
    if format is Format.JSON:
        print_json(seen.facts(changed))
    elif changed:
        print(f"tablet {seen.successor} has the key range of {tablet}, and no rows yet")
    elif seen.done:
        print(f"nothing to do: tablet {seen.successor} has its key range already")
    else:
        print("nothing was changed: --dry-run")
