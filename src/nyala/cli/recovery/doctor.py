"""`nyala doctor`: findings after failures, the plan of the recovery, and its performance."""

from typing import TYPE_CHECKING, Annotated

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

if TYPE_CHECKING:
    from nyala.client.core import ClientCore
    from nyala.env.env import Env
    from nyala.operate.doctor.facts import Declared
    from nyala.operate.doctor.steps import RecoveryStep

COLUMNS = (
    "number", "name", "finding", "command", "performed_by", "declare_lost", "still_running",
    "discards_rows", "data_at_risk",
)  # fmt: skip


@verb
@stays(STEPS)
def doctor(
    masters: MastersOption = "",
    lost: Annotated[
        list[str] | None,
        typer.Option(
            "--lost",
            help="Uuid or address of a server whose data are lost for good; may be repeated.",
        ),
    ] = None,
    new_master: Annotated[
        list[str] | None,
        typer.Option(
            "--new-master",
            help="Address of a running new master, which is to be added; may be repeated.",
        ),
    ] = None,
    do: Annotated[
        list[str] | None,
        typer.Option("--do", help="Name of a step to perform; may be repeated."),
    ] = None,
    yes: Annotated[
        bool,
        typer.Option(
            "--yes",
            help="Skip the confirmation; without --do: of all steps that discard no replica or tablet.",
        ),
    ] = False,
    format: FormatOption = Format.TABLE,
) -> None:
    """Find what keeps the cluster from working, and print a plan; with --do or --yes, perform it.

    Exit status 0: nothing is to be done, or the steps were performed; 1: there are steps. Run it again after
    the steps, or after an interruption: the plan has what is left.
    """
    from nyala.operate.doctor.facts import Declared
    from nyala.operate.run import client_of, run_alone

    if not all((*(lost or ()), *(new_master or ()), *(do or ()))):
        raise fail("--lost, --new-master or --do has an empty value; name what is meant", 2)
    declared = Declared(frozenset(lost or ()), tuple(new_master or ()))

    async def work(env: "Env") -> int:
        async with client_of(env, masters) as core:
            return await _run(core, declared, tuple(do or ()), yes, format)

    left = run_alone(work, masters)
    if left:
        raise typer.Exit(1)


async def _run(
    core: "ClientCore", declared: "Declared", do: tuple[str, ...], yes: bool, format: Format
) -> int:
    """Print the plan, and perform the chosen steps; return the number of steps that are left."""
    from nyala.operate.doctor.collect import collect
    from nyala.operate.doctor.perform import chosen, require_same
    from nyala.operate.doctor.plan import make_plan, remarks

    facts = await collect(core)
    plan = make_plan(facts, declared)
    for text in remarks(facts, declared):
        say(text)
    todo = chosen(plan, do) if do or yes else []
    if format is Format.JSON:
        performed = [s.name for s in todo]
        print_json({"steps": [s.as_dict(n) for n, s in enumerate(plan, 1)], "performs": performed})
    elif format is Format.CSV:
        rows = [s.as_dict(number) for number, s in enumerate(plan, 1)]
        show(COLUMNS, [[one[c] for c in COLUMNS] for one in rows], format)
    else:
        _print(plan)
    if todo and not yes:
        question = f"Perform {', '.join(s.name for s in todo)}?"
        if not typer.confirm(question, err=True):
            raise fail("nothing was changed")
        require_same(todo, make_plan(await collect(core), declared))
    left = await _perform(core, todo)
    if left:
        raise fail(
            f"not performed: {', '.join(left)}; run nyala doctor again, which makes a new plan"
        )
    return 0 if todo else len(plan)


async def _perform(core: "ClientCore", todo: "list[RecoveryStep]") -> list[str]:
    """Perform steps; return the names of those that failed, after which the others are performed too."""
    from nyala.common.errors import NyalaError
    from nyala.operate.doctor.perform import perform

    failed = []
    for step in todo:
        assert step.action is not None, step
        say(f"{step.name}: {step.command}")
        try:
            await perform(core, step.action, say)
        except NyalaError as err:
            say(f"{step.name} failed: {err.message}")
            failed.append(step.name)
    return failed


def _print(plan: "list[RecoveryStep]") -> None:
    if not plan:
        print("nothing to do; nyala cluster ksck checks everything else")
    for number, step in enumerate(plan, 1):
        by = "" if step.ready else " (by the operator)" if step.action is None else " (waits)"
        print(f"{number}. {step.name}{by}")
        print(f"   {step.finding}")
        print(f"   command: {step.command}")
        for line in () if step.risk is None else step.risk.lines:
            print(f"   data at risk: {line}")
        if step.undeclared:
            print(
                f"   first start {', '.join(step.undeclared)}, or declare them lost for good: "
                + " ".join(f"--lost {a}" for a in step.undeclared)
            )
        if step.running:
            print(
                f"   {', '.join(step.running)} may have the data, and runs: wait until it serves or is dead"
            )
        if step.discards:
            print(f"   it discards rows, and is performed only if it is named: --do {step.name}")
