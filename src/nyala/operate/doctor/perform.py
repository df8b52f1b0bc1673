"""Performance of the steps of a plan, by the functions of the commands that the plan names."""

from collections.abc import Callable

from nyala.client.core import ClientCore
from nyala.common.errors import InvalidArgument
from nyala.operate import tablet_replace, unsafe_config
from nyala.operate.doctor.steps import (
    Action,
    AddMaster,
    DeleteOrphan,
    RecoverTablet,
    RecoveryStep,
    RemoveMaster,
    ReplaceLostTablet,
)
from nyala.operate.master_group import MasterGroup
from nyala.operate.remote_replicas import delete_replica

Notify = Callable[[str], None]
AGAIN = "nothing was changed; run nyala doctor again, which makes a new plan"


def chosen(plan: list[RecoveryStep], names: tuple[str, ...]) -> list[RecoveryStep]:
    """Return the steps to perform, in the order of the plan.

    Args:
        plan: all steps.
        names: of the steps that are wanted; empty: all that are ready and discard nothing.

    Raises:
        InvalidArgument: no such step; or one that only the operator can perform, or that waits for `--lost`.
    """
    if not names:
        return [s for s in plan if s.ready and not s.discards]
    by_name = {s.name: s for s in plan}
    for name in names:
        if name not in by_name:
            raise InvalidArgument(
                f"the plan has no step {name!r}: it may be done already. The names of the steps that "
                f"are left: {', '.join(by_name) or 'none'}"
            )
        step = by_name[name]
        if step.undeclared:
            lost = " ".join(f"--lost {a}" for a in step.undeclared)
            raise InvalidArgument(
                f"step {name} is safe only if servers that do not answer are lost for good; start them, or "
                f"declare them lost: {lost}"
            )
        if step.running:
            raise InvalidArgument(
                f"step {name} is safe only if the data of {', '.join(step.running)} are lost. It runs: it "
                "answers, or the leader master has its heartbeats: wait until it shows its replicas or "
                "counts as dead, and run nyala doctor again"
            )
        if step.action is None:
            raise InvalidArgument(f"step {name} is for the operator: {step.command}")
    return [s for s in plan if s.name in names]


def require_same(todo: list[RecoveryStep], plan: list[RecoveryStep]) -> None:
    """Check that steps which were confirmed are what a new plan has, and that it may perform them.

    Args:
        todo: the steps that were confirmed.
        plan: made afterwards.

    Raises:
        InvalidArgument: a step has changed, or is not needed any more.
    """
    ready = {s.name: s.action for s in plan if s.ready}
    changed = [s.name for s in todo if ready.get(s.name) != s.action]
    if changed:
        raise InvalidArgument(
            f"the cluster has changed since the plan was printed, and with it {', '.join(changed)}; {AGAIN}"
        )


async def perform(core: ClientCore, action: Action, notify: Notify) -> None:
    """Perform one step. Idempotent.

    Args:
        core: a client of the cluster.
        action: of the step.
        notify: called with what is done, and its progress.

    Raises:
        InvalidArgument: the state has changed since the plan was made; nothing was changed.
        NyalaError: as the command that the plan names.
    """
    match action:
        case RecoverTablet():
            await _recover(core, action, notify)
        case ReplaceLostTablet(tablet):
            made = await tablet_replace.replace_with(core, tablet)
            notify(f"tablet {made.successor} has the key range of {tablet}, and no rows yet")
        case DeleteOrphan(server, tablet):
            await delete_replica(core, server, tablet, force=True, notify=notify)
        case RemoveMaster(name):
            await MasterGroup(core, notify).remove(name)
        case AddMaster(address):
            await MasterGroup(core, notify).add(address)


async def _recover(core: ClientCore, action: RecoverTablet, notify: Notify) -> None:
    todo = await unsafe_config.plan(core.env, action.tablet, action.target, action.keep)
    if todo.risks and not todo.done:
        raise InvalidArgument(f"tablet {action.tablet}: {'; '.join(todo.risks)}; {AGAIN}")
    outcome = await unsafe_config.execute(core.env, todo)
    notify(
        f"tablet {action.tablet}: the configuration of {outcome.config} is committed, with the members "
        f"{' '.join(todo.keep)}; entries up to {outcome.last} are kept"
    )
