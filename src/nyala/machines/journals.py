"""Kind 1: a journal; it has one tablet, and neither columns nor partitions."""

from collections.abc import Iterator, Mapping

from nyala.common.errors import HistoryGone, InvalidArgument
from nyala.common.ids import TableId, TabletId
from nyala.env.files import Files
from nyala.journal import manifest, steps
from nyala.journal.journal import JournalMachine
from nyala.journal.manifest import JournalInfo
from nyala.machines.kind import ContentSum, MachineInfo
from nyala.replica.state_machine import StateMachine
from nyala.storage.flush_point import StoredFlushPoint
from nyala.wire.proto import nyala_pb2 as pb

LIMIT_OPTION = "journal_bytes"
"""Option of a journal: most bytes of its valid entries and keys."""
DEFAULT_LIMIT_BYTES = 1 << 30


class JournalKind:
    """Journals; see `MachineKind`."""

    number = 1
    name = "journal"
    items_name = "entries and keys"
    file_name = manifest.NAME
    machine_class = JournalMachine

    def create(self, files: Files, directory: str, order: pb.CreateTabletRequest) -> StateMachine:
        """Make an empty journal; the order's schema has only a version, that of the definition.

        Args:
            files: the file system.
            directory: directory of the journal.
            order: defines it.
        """
        info = JournalInfo(
            TabletId(order.tablet_id),
            TableId(order.table_id),
            order.table_name,
            order.schema.version,
            limit_bytes(order.options),
        )
        return JournalMachine.create(files, directory, info)

    def open(self, files: Files, directory: str) -> StateMachine:
        """Open a journal."""
        return JournalMachine.open(files, directory)

    def describe(self, machine: StateMachine) -> MachineInfo:
        """Return what is reported of a journal; its items are valid entries and keys."""
        assert isinstance(machine, JournalMachine), machine
        info, state = machine.info, machine.state
        return MachineInfo(
            kind=self.number,
            tablet_id=info.tablet_id,
            table_id=info.table_id,
            name=info.name,
            version=info.version,
            data_bytes=machine.data_bytes,
            items=state.items,
            options={LIMIT_OPTION: str(info.limit_bytes)},
        )

    def known(self, machine: StateMachine) -> pb.TabletDefinition:
        """Return what a journal knows of its definition."""
        found = self.describe(machine)
        schema = pb.Schema(version=found.version)
        spec = pb.TableSpec(name=found.name, schema=schema, options=found.options, kind=self.number)
        return pb.TabletDefinition(spec=spec)

    def definition(self, machine: StateMachine, order: pb.AlterTabletRequest) -> bytes | None:
        """Return the operation that gives a journal the order's name and limit."""
        assert isinstance(machine, JournalMachine), machine
        version = order.schema.version
        if version <= machine.info.version:
            return None
        limit = limit_bytes(order.options)
        return steps.encode_definition(steps.Definition(version, order.table_name, limit))

    def checksum(
        self, machine: StateMachine, at: int, batch_rows: int, batch_bytes: int
    ) -> ContentSum:
        """Begin a checksum of a journal, which has that of each of its last changes.

        Args:
            machine: a journal.
            at: hybrid time of the content.
            batch_rows: has no effect: there is one part.
            batch_bytes: has no effect.
        """
        assert isinstance(machine, JournalMachine), machine
        return ContentSum(machine.info.version, _sums(machine, at))

    def check_files(self, files: Files, directory: str) -> None:
        """Check the manifest of a journal, and that the files that it names exist."""
        manifest.load(files, directory)

    def flush_point(self, files: Files, directory: str) -> StoredFlushPoint:
        """Return the flush point of a journal's files."""
        return manifest.load(files, directory).flush_point

    def verify(self, machine: StateMachine) -> int:
        """Return the number of a journal's items: opening it has read all of its files."""
        assert isinstance(machine, JournalMachine), machine
        return machine.state.items

    def figures(self, machine: StateMachine) -> Mapping[str, float]:
        """Return measurements of a journal."""
        assert isinstance(machine, JournalMachine), machine
        unflushed_bytes = machine.unflushed_bytes()
        return {
            "tablet_file_bytes": machine.data_bytes - unflushed_bytes,
            "tablet_memory_bytes": unflushed_bytes,
            "tablet_journal_items": machine.state.items,
            "tablet_journal_bytes": machine.state.size_bytes,
        }

    def check_result(self, result: bytes) -> None:
        """Do nothing: every definition fits every journal."""


def limit_bytes(options: Mapping[str, str]) -> int:
    """Return the limit of a journal with these options, in bytes.

    Raises:
        InvalidArgument: it is no positive whole number.
    """
    text = options.get(LIMIT_OPTION, str(DEFAULT_LIMIT_BYTES))
    if not (text.isascii() and text.isdecimal() and len(text) <= 15 and int(text)):
        raise InvalidArgument(
            f"option {LIMIT_OPTION} is {text[:40]!r}; it is a whole number of bytes, from 1 to 10**15 - 1; "
            "write it in digits"
        )
    return int(text)


def _sums(journal: JournalMachine, at: int) -> Iterator[tuple[int, int]]:
    found = journal.digest_at(at)
    if found is None:
        raise HistoryGone(
            f"the content of the journal {journal.info.name!r} at {at} is not known any more: it has changed "
            "too often since, or was opened since; ask again"
        )
    yield found
