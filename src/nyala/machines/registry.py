"""Registry of the kinds of state machines; only it distinguishes them by their classes."""

from typing import TypeVar

from nyala.common.errors import Corrupt, InvalidArgument
from nyala.env.files import Files
from nyala.journal.journal import JournalMachine
from nyala.machines.journals import JournalKind
from nyala.machines.kind import MachineInfo, MachineKind
from nyala.machines.tables import TableKind
from nyala.replica.state_machine import StateMachine
from nyala.tablet.tablet import Tablet

M = TypeVar("M", bound=StateMachine)
DataMachine = Tablet | JournalMachine
"""A machine of some kind; a witness is of none."""

TABLE: MachineKind = TableKind()
JOURNAL: MachineKind = JournalKind()
KINDS: tuple[MachineKind, ...] = (TABLE, JOURNAL)


def kind_of(number: int) -> MachineKind:
    """Return a kind by its number.

    Raises:
        InvalidArgument: this build has no such kind.
    """
    for kind in KINDS:
        if kind.number == number:
            return kind
    raise InvalidArgument(
        f"tablets of kind {number} are not known to this build; it is older than the masters: upgrade it"
    )


def kind_of_directory(files: Files, directory: str) -> MachineKind:
    """Return the kind of the machine in a directory; a table if no file names the kind.

    Raises:
        Corrupt: files of several kinds are there.
    """
    there = set(files.list(directory))
    found = [kind for kind in KINDS if kind.file_name in there]
    if len(found) > 1:
        names = " and ".join(kind.file_name for kind in found)
        raise Corrupt(f"{directory} has {names}; replace this replica from a healthy one")
    return (found or [TABLE])[0]  # a table's own error says what is missing


def open_machine(files: Files, directory: str) -> StateMachine:
    """Open the machine of a directory, whatever its kind.

    Raises:
        Corrupt: a file is missing or damaged.
    """
    return kind_of_directory(files, directory).open(files, directory)


def kind_of_machine(machine: StateMachine) -> MachineKind:
    """Return the kind of a machine, which is no witness."""
    found = _find_kind(machine)
    assert found is not None, f"{type(machine).__name__} is of no kind"
    return found


def describe(machine: StateMachine) -> MachineInfo | None:
    """Return what is reported of a machine; None: a witness, which has no data."""
    kind = _find_kind(machine)
    return None if kind is None else kind.describe(machine)


def with_data(machine: StateMachine) -> DataMachine | None:
    """Return a machine that has data; None: a witness."""
    return machine if isinstance(machine, DataMachine) else None


def of_class(machine: StateMachine, wanted: type[M]) -> M | None:
    """Return a machine if it is one of a kind's class; None: it is of another kind, or a witness."""
    return machine if isinstance(machine, wanted) else None


def _find_kind(machine: StateMachine) -> MachineKind | None:
    return next((kind for kind in KINDS if isinstance(machine, kind.machine_class)), None)
