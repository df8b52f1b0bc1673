"""`nyala txn list`, `show`, `abort`, `key` and `owner`: transactions of the cluster, and their keys."""

from typing import TYPE_CHECKING, Annotated

import typer

from nyala.cli.output import Format, FormatOption, MastersOption, say, show, stays, verb
from nyala.operate.run import connected

if TYPE_CHECKING:
    from nyala.client.core import ClientCore

LISTED = ("id", "state", "at", "tablets", "unresolved", "key", "batches", "bytes", "age_s")
SHOWN = ("tablet", "state", "at", "batches", "bytes")
KEY = ("key", "query", "epoch", "at", "transaction", "owner")

app = typer.Typer(no_args_is_help=True, help="Transactions: list, show, abort, key, owner.")
Id = Annotated[str, typer.Argument(help="Id of the transaction, or a prefix of it.")]
Key = Annotated[str, typer.Argument(help="Id of the job, or name of the stream.")]


@app.callback()
def _group() -> None:
    """Transactions of the cluster."""


@app.command("list")
@verb
def list_(masters: MastersOption = "", format: FormatOption = Format.TABLE) -> None:
    """List transactions: staged, being prepared, committed, and resolved ones that are still remembered.

    `at` is the commit time, `unresolved` the number of tablets in which its rows are not visible yet, `age_s`
    the time since it was kept alive last, or was committed.
    """
    from nyala.operate import transactions

    found = connected(masters, transactions.listing)
    rows = [
        (
            t.id, t.state, t.at or None, len(t.tablets), len(t.unresolved), t.key or None,
            sum(s.batches for s in t.stages.values()), sum(s.bytes for s in t.stages.values()),
            round(t.age_ms / 1000, 1),
        )
        for t in found.transactions
    ]  # fmt: skip
    show(LISTED, rows, format)
    if found.silent:
        say(f"stages of {', '.join(found.silent)} are missing: no answer; see: nyala cluster ksck")


@app.command("show")
@verb
def show_(
    transaction: Id, masters: MastersOption = "", format: FormatOption = Format.TABLE
) -> None:
    """Show the tablets of a transaction: `at` is the prepare time, or the commit time once there is one.

    The state `rows lost` is of a tablet that lost them by an unsafe recovery.
    """
    from nyala.operate import transactions

    view = connected(masters, lambda core: transactions.find(core, transaction))
    rows = []
    for tablet in view.tablets:
        stage = view.stages.get(tablet)
        if view.at:
            state, at = ("unresolved" if tablet in view.unresolved else "resolved"), view.at
            state = "rows lost" if tablet in view.lost else state
        else:
            at = 0 if stage is None else stage.prepared
            state = "prepared" if at else "staged" if stage is not None else view.state
        batches, size = (0, 0) if stage is None else (stage.batches, stage.bytes)
        rows.append((tablet, state, at or None, batches, size))
    show(SHOWN, rows, format, title=f"transaction {view.id}: {view.state}")


@app.command("abort")
@verb
@stays("the masters may still end the transaction: nyala txn list shows it")
def abort(transaction: Id, masters: MastersOption = "") -> None:
    """End a transaction without effect, and free what it has staged; one that is committed stays so."""
    from nyala.common.hybrid_time import to_datetime
    from nyala.operate import transactions

    async def work(core: "ClientCore") -> tuple[str, int]:
        view = await transactions.find(core, transaction)
        return view.id, await transactions.abort(core, view)

    found, before = connected(masters, work)
    if not before:
        say(f"transaction {found} is aborted")
        return
    moment = to_datetime(before).isoformat(timespec="milliseconds")
    say(
        f"transaction {found} has ended: it was not committed after {moment} (hybrid time {before}), and "
        "cannot be any more; whether it was before is not known, as the decisions up to that time are removed"
    )


@app.command("key")
@verb
def key(name: Key, masters: MastersOption = "", format: FormatOption = Format.TABLE) -> None:
    """Show the last commit under a key, and the user who owns the key: no other one may use it.

    A key without an owner is open to every user. Users see their own keys only.
    """
    from nyala.operate import transactions

    found = connected(masters, lambda core: transactions.key(core, name))
    of_stream = bool(found.key.query)
    row = (
        name, found.key.query or None, found.key.epoch if of_stream else None, found.at,
        found.transaction.hex(), found.owner or None,
    )  # fmt: skip
    show(KEY, [row], format)


@app.command("owner")
@verb
@stays("the key may have the owner nevertheless: nyala txn key shows it")
def owner(
    name: Key,
    user: Annotated[
        str, typer.Argument(help="Its new owner; left out: nobody, and every user may use it.")
    ] = "",
    masters: MastersOption = "",
) -> None:
    """Give the key of a job or a stream to another user, or to nobody. For administrators."""
    from nyala.operate import transactions

    connected(masters, lambda core: transactions.set_key_owner(core, name, user))
    say(f"the key {name!r} belongs to {user}" if user else f"the key {name!r} has no owner")
