"""Both kinds of state machines through the registry, as in servers and tools: created, opened, checked."""

from pathlib import Path
from typing import Any

import pytest

from nyala.common.errors import Corrupt, HistoryGone, InvalidArgument
from nyala.common.ids import CommittedOperation, OpId
from nyala.journal import steps
from nyala.machines import registry
from nyala.machines.journals import DEFAULT_LIMIT_BYTES
from nyala.storage.flush_point import StoredFlushPoint
from nyala.tablet.files.replicated_ops import RowOp
from nyala.wire.proto import nyala_pb2 as pb
from tests.unit.machines.support.kinds import (
    FILES,
    KINDS,
    KindDriver,
    adding,
    order,
    removing,
)
from tests.unit.tablet.support.tablet_support import INT_KEY, numbered, payload

COUNT = 40


def operation(kind: Any, number: int) -> bytes:
    """Return an operation that adds one row, or one entry."""
    if kind is registry.TABLE:
        return payload(INT_KEY, RowOp.INSERT, numbered(number, number + 1))
    return steps.encode_step(steps.Step([], [steps.Append("log", b"%d" % number)]))


def made(kind: Any, directory: str) -> Any:
    """Create a machine with content in memory only."""
    machine: Any = kind.create(FILES, directory, order(kind))
    for number in range(1, COUNT + 1):
        machine.apply([CommittedOperation(OpId(1, number), number * 10, operation(kind, number))])
    return machine


def flush(machine: Any) -> None:
    build = machine.prepare_flush(StoredFlushPoint(OpId(1, COUNT), COUNT * 10, b""))
    build()()


def summed(kind: Any, machine: Any, at: int) -> tuple[int, int]:
    content = kind.checksum(machine, at, 7, 1 << 20)
    assert content.version == 0
    parts = list(content.parts)
    return sum(items for items, _ in parts), sum(total for _, total in parts) % (1 << 64)


@KINDS
def test_created_machine_can_be_opened(kind, tmp_path):
    machine = made(kind, str(tmp_path / "m"))
    flush(machine)
    before = registry.describe(machine)
    machine.close()
    opened = registry.open_machine(FILES, str(tmp_path / "m"))
    assert registry.kind_of_machine(opened) is kind is registry.kind_of(kind.number)
    now = registry.describe(opened)
    assert now is not None
    assert now == before
    assert (now.kind, now.name, now.version, now.items) == (kind.number, "n", 0, COUNT)
    assert now.data_bytes > 0


@KINDS
def test_verification_reads_all_files(kind, tmp_path):
    machine = made(kind, str(tmp_path / "m"))
    flush(machine)
    machine.close()

    def verified() -> int:
        opened = registry.open_machine(FILES, str(tmp_path / "m"))
        try:
            found: int = kind.verify(opened)
            return found
        finally:
            opened.close()

    assert verified() == COUNT
    data = max(Path(tmp_path / "m").iterdir(), key=lambda path: path.stat().st_size)
    whole = data.read_bytes()
    damaged = bytearray(whole)
    damaged[len(whole) // 3] ^= 0x40
    data.write_bytes(bytes(damaged))
    with pytest.raises(Corrupt):
        verified()


@KINDS
def test_equal_content_has_equal_checksums_independent_of_files(kind, tmp_path):
    one, two = made(kind, str(tmp_path / "1")), kind.create(FILES, str(tmp_path / "2"), order(kind))
    group = [
        CommittedOperation(OpId(1, n), n * 10, operation(kind, n)) for n in range(1, COUNT + 1)
    ]  # fmt: skip
    two.apply(group)
    assert summed(kind, one, 200) == summed(kind, two, 200)
    assert summed(kind, one, 200)[0] == 20
    assert summed(kind, one, 200) != summed(kind, one, 210)
    flush(two)
    two.close()
    again = registry.open_machine(FILES, str(tmp_path / "2"))
    assert summed(kind, again, COUNT * 10) == summed(kind, one, COUNT * 10)


def test_checksum_of_journal_before_its_opening_is_history_gone(tmp_path):
    kind = registry.JOURNAL
    flush(made(kind, str(tmp_path / "m")))
    opened = registry.open_machine(FILES, str(tmp_path / "m"))
    with pytest.raises(HistoryGone, match="the content of the journal 'n' at 200 is not known"):
        summed(kind, opened, 200)


@KINDS
def test_copy_of_checkpoint_is_machine_at_its_cut_and_release_removes_old_files(kind, tmp_path):
    driver = KindDriver(kind, str(tmp_path / "m"), COUNT)
    driver.flush()
    machine, at = driver.machine, driver.now
    before, held = summed(kind, machine, at), machine.checkpoint()
    driver.apply(removing(kind, 5), adding(kind, COUNT))
    driver.flush()
    machine.prepare_compaction(driver.now, force=True)()()
    copied = tmp_path / "copy"
    copied.mkdir()
    for file in held.files:
        content = (tmp_path / "m" / file.name).read_bytes()
        assert len(content) == file.size_bytes
        (copied / file.name).write_bytes(content)
    (copied / held.manifest_name).write_bytes(held.manifest_bytes)
    opened = registry.open_machine(FILES, str(copied))
    assert opened.flush_point == held.flush_point != machine.flush_point
    assert summed(kind, opened, at) == before
    held.release()
    left = {path.name for path in (tmp_path / "m").iterdir()}
    assert left == {held.manifest_name, *(file.name for file in machine.checkpoint().files)}
    again = registry.open_machine(FILES, str(tmp_path / "m"))
    assert summed(kind, again, driver.now) == summed(kind, machine, driver.now) != before


@KINDS
def test_definition_is_applied_once(kind, tmp_path):
    machine = made(kind, str(tmp_path / "m"))
    wanted = pb.AlterTabletRequest(table_name="m", schema=order(kind).schema)
    wanted.schema.version = 1
    op = kind.definition(machine, wanted)
    (result,) = machine.apply([CommittedOperation(OpId(1, COUNT + 1), 10_000, op)])
    kind.check_result(result)
    info = registry.describe(machine)
    assert info is not None
    assert (info.name, info.version) == ("m", 1)
    assert kind.definition(machine, wanted) is None, "the definition has no effect"


@KINDS
def test_kinds_report_their_own_metrics(kind, tmp_path):
    machine = made(kind, str(tmp_path / "m"))
    figures = kind.figures(machine)
    assert figures["tablet_memory_bytes"] == machine.unflushed_bytes() > 0
    flush(machine)
    figures = kind.figures(machine)
    assert figures["tablet_memory_bytes"] == 0
    assert figures["tablet_file_bytes"] > 0
    assert ("tablet_journal_items" in figures) == (kind is registry.JOURNAL)


def test_unknown_kind_is_refused(tmp_path):
    with pytest.raises(InvalidArgument, match="tablets of kind 2 are not known to this build"):
        registry.kind_of(2)
    for text in ("0", "-1", "1.5", "", "9" * 16):
        with pytest.raises(InvalidArgument, match="whole number of bytes"):
            registry.JOURNAL.create(
                FILES, str(tmp_path / "j"), order(registry.JOURNAL, journal_bytes=text)
            )
    journal = registry.JOURNAL.create(FILES, str(tmp_path / "j"), order(registry.JOURNAL))
    info = registry.describe(journal)
    assert info is not None
    assert info.options == {"journal_bytes": str(DEFAULT_LIMIT_BYTES)}
    for kind in registry.KINDS:
        made(kind, str(tmp_path / kind.name)).close()
    (tmp_path / "table" / "JOURNAL").write_bytes(b"")
    with pytest.raises(Corrupt, match="has MANIFEST and JOURNAL"):
        registry.open_machine(FILES, str(tmp_path / "table"))


@KINDS
def test_kind_of_machine_is_known_without_its_report(kind, tmp_path, monkeypatch):
    """A report adds up files and rows."""
    machine = made(kind, str(tmp_path / "m"))

    def describe(*_: object) -> None:
        raise AssertionError("it was described")

    for each in registry.KINDS:
        monkeypatch.setattr(type(each), "describe", describe)
    assert registry.kind_of_machine(machine) is kind
    machine.close()


@KINDS
def test_machine_knows_its_definition(kind, tmp_path):
    machine = made(kind, str(tmp_path / "m"))
    known = kind.known(machine)
    asked = order(kind)
    assert (known.spec.name, known.spec.kind) == ("n", kind.number)
    assert known.spec.schema.columns == asked.schema.columns
    assert known.spec.schema.version == asked.schema.version
    assert not known.spec.replicas
    if kind is registry.TABLE:
        assert known.spec.partition == asked.partition_schema
    else:
        assert known.spec.options == {"journal_bytes": str(DEFAULT_LIMIT_BYTES)}
