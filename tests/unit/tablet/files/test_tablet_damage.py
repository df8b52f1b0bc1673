"""Damage: one flipped byte anywhere in any file, a missing file, malformed operations."""

import random
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pytest

from nyala.common.errors import BadChecksum, BadVersion, Corrupt
from nyala.common.ids import ColumnId, CommittedOperation
from nyala.storage.sections import Sections, pack
from nyala.tablet.files import end_stamps, replicated_ops, transaction_ops
from nyala.tablet.files.file_kind import FileKind
from nyala.tablet.files.replicated_ops import RowError, RowOp, WriteOp
from nyala.tablet.files.transaction_ops import KeepOp, TransactionOutcome, TransactionResult
from nyala.tablet.tablet import Tablet
from nyala.tablet.write.apply import apply_writes
from nyala.tablet.write.apply_schema import apply_schema
from nyala.tablet.write.store import Store
from tests.sim.world.files import SimDisk
from tests.unit.tablet.support.tablet_support import (
    INT_KEY,
    PAIR_KEY,
    Driver,
    message,
    numbered,
    payload,
)

KEY_FIELDS = [("host", pa.string()), ("n", pa.int32())]


@pytest.fixture
def flushed(tmp_path):
    driver = Driver(str(tmp_path / "t"))
    driver.write(RowOp.INSERT, numbered(0, 20))
    driver.flush()
    driver.write(RowOp.DELETE, [{"k": 3}], ["k"])
    driver.flush()
    return driver


def read_all(driver):
    tablet = Tablet.open(driver.files, driver.directory)
    return [b.to_pylist() for b in tablet.view().scan(driver.now)]


def small() -> tuple[SimDisk, Driver]:
    """A few rows, one of them ended: an index, a data and a `del` file of each of two rowsets."""
    disk = SimDisk(random.Random(1))
    driver = Driver("data/t", PAIR_KEY, files=disk.mount())
    rows = [{"host": h, "n": 1, "a": n, "s": "x", "b": b"y"} for n, h in enumerate(["", "a", "b"])]
    driver.write(RowOp.INSERT, rows)
    driver.flush()
    driver.write(RowOp.DELETE, rows[:1], ["host", "n"])
    driver.write(RowOp.UPSERT, [{"host": "c", "n": 2, "a": 9, "s": None}], ["host", "n", "a", "s"])
    driver.flush()
    return disk, driver


def content_of(disk: SimDisk, name: str) -> bytearray:
    inode = disk.names.get(f"data/t/{name}")
    assert inode is not None
    return inode.content


def reads(driver: Driver, tablet: Tablet) -> Iterator[Callable[[], object]]:
    """Every kind of read, all of it or a part."""
    view, now = tablet.view(), driver.now
    keys = pa.RecordBatch.from_pylist([{"host": "a", "n": 1}], pa.schema(KEY_FIELDS))
    yield lambda: [r for b in view.scan(now, ordered=True) for r in b.to_pylist()]
    yield lambda: view.get(now, keys).to_pylist()
    yield lambda: view.count(now)
    yield lambda: [r for b in view.scan(now, driver.ids("n", "a")) for r in b.to_pylist()]
    yield lambda: [r for b in view.changes(0, now, net=False) for r in b.to_pylist()]


def complaint(driver: Driver, expected: Sequence[object], first: int = 0) -> Corrupt | None:
    """Open the tablet and read it in every way, starting with one, until an error.

    Adjacent bytes begin with other reads, so that each kind of read meets each section's damage.
    """
    try:
        tablet = Tablet.open(driver.files, driver.directory)
        ways = list(zip(reads(driver, tablet), expected, strict=True))
        for read, right in ways[first % len(ways) :] + ways[: first % len(ways)]:
            assert read() == right
    except Corrupt as err:
        return err
    return None


@pytest.mark.full
def test_every_flipped_byte_is_detected_and_no_read_is_wrong():
    disk, driver = small()
    expected = [read() for read in reads(driver, driver.tablet)]
    names = driver.files.list("data/t")
    assert [n.rpartition(".")[2] for n in names] == ["dat", "idx", "dat", "idx", "del", "MANIFEST"]
    for name in names:
        content = content_of(disk, name)
        for place in range(len(content)):
            content[place] ^= 1 << place % 8
            found = complaint(driver, expected, place)
            content[place] ^= 1 << place % 8
            assert found, f"byte {place} of {name} was flipped, and every read was correct"
            assert name in found.details["path"], found
            assert "offset" in found.details, found
    assert not complaint(driver, expected)


@pytest.mark.full
def test_truncation_at_any_byte_is_detected():
    disk, driver = small()
    expected = [read() for read in reads(driver, driver.tablet)]
    for name in driver.files.list("data/t"):
        content = content_of(disk, name)
        whole = bytes(content)
        for length in range(len(whole)):
            del content[length:]
            found = complaint(driver, expected, length)
            content[:] = whole
            assert found, f"{name} was cut to {length} bytes, and every read was correct"
            assert name in found.details["path"], found
            assert "offset" in found.details, found
    assert not complaint(driver, expected)


def test_damage_error_names_file_and_offset(flushed, tmp_path):
    path = tmp_path / "t" / "00000001.dat"
    damaged = bytearray(path.read_bytes())
    damaged[70] ^= 1
    path.write_bytes(damaged)
    tablet = Tablet.open(flushed.files, flushed.directory)  # data is verified when touched
    assert tablet.view().count(flushed.now) == 19
    with pytest.raises(BadChecksum) as caught:
        list(tablet.view().scan(flushed.now))
    assert caught.value.details == {"path": str(path), "offset": "64"}


def test_missing_file_is_detected_and_nothing_is_removed(flushed, tmp_path):
    (tmp_path / "t" / "stray").write_bytes(b"x")
    end_stamps = [n for n in flushed.files.list(flushed.directory) if n.endswith(".del")]
    assert len(end_stamps) == 1
    for name in ("00000001.idx", "00000001.dat", *end_stamps):
        path = tmp_path / "t" / name
        whole = path.read_bytes()
        path.unlink()
        with pytest.raises(Corrupt, match=f"lacks {name}"):
            read_all(flushed)
        assert (tmp_path / "t" / "stray").exists()
        path.write_bytes(whole)
    read_all(flushed)
    assert not (tmp_path / "t" / "stray").exists()


@pytest.mark.parametrize(
    ("row", "after_flush", "complains"),
    [(20, 0, "names rows"), (3, 1, "of 0 or above"), (3, None, "of 0 or above"), (3, 0, "")],
)
def test_end_that_no_flush_writes_is_refused(flushed, row, after_flush, complains):
    """A row that is absent, a time above the flush point, or 0, which is the mark of a live row."""
    tablet = Tablet.open(flushed.files, flushed.directory)
    stamp = 0 if after_flush is None else tablet.flush_point.stamp + after_flush
    [name] = [n for n in flushed.files.list(flushed.directory) if n.endswith(".del")]
    path = f"{flushed.directory}/{name}"
    flushed.files.remove(path)
    end_stamps.write(flushed.files, path, np.array([row], np.int64), np.array([stamp], np.uint64))
    if not complains:
        assert len(read_all(flushed)[0]) == 19
        return
    with pytest.raises(Corrupt, match=complains):
        Tablet.open(flushed.files, flushed.directory)


def test_file_of_newer_version_or_other_kind_is_refused():
    good = bytearray(pack(FileKind.END_STAMPS, [(1, b"abc")]))
    with pytest.raises(Corrupt, match="magic"):
        Sections(memoryview(bytes(good)), "f", FileKind.DATA)
    from nyala.storage import sections as layout

    current, layout.VERSION = layout.VERSION, 9
    try:
        newer = pack(FileKind.END_STAMPS, [(1, b"abc")])
    finally:
        layout.VERSION = current
    with pytest.raises(BadVersion, match="version 9"):
        Sections(memoryview(newer), "f", FileKind.END_STAMPS)


def hostile_payloads():
    good = payload(INT_KEY, RowOp.UPSERT, numbered(0, 4))
    mixed = payload(INT_KEY, RowOp.MIXED, [{"k": 1, "_op": 1}], ["k"])
    chance = random.Random(7)
    yield b""
    for source in (good, mixed):
        for length in sorted({chance.randrange(len(source)) for _ in range(40)}):
            yield source[:length]
        for _ in range(300):
            damaged = bytearray(source)
            for _ in range(chance.randrange(1, 4)):
                damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
            yield bytes(damaged)
        for _ in range(50):
            yield source[:24] + chance.randbytes(chance.randrange(400))


def apply_alone(store: Store, operation: CommittedOperation) -> None:
    """Apply an operation to a store, which continues after a refusal, unlike its tablet."""
    if replicated_ops.is_schema(operation.payload):
        apply_schema(store, operation.payload, operation.stamp)
    else:
        apply_writes(store, [operation])


def test_damaged_operations_never_crash_and_change_nothing_when_refused(tmp_path):
    driver = Driver(str(tmp_path / "t"))
    refused = applied = 0
    for data in hostile_payloads():
        before = driver.tablet.rows, driver.tablet.store.mem.rows
        try:
            apply_alone(driver.tablet.store, driver.entry(data))
            applied += 1
        except Corrupt:
            refused += 1
            assert (driver.tablet.rows, driver.tablet.store.mem.rows) == before
    assert refused > 100
    assert applied > 10  # a flipped bit in a value is another valid batch
    driver.flush()
    assert driver.tablet.view().count(driver.now) == driver.tablet.rows


def test_operations_that_name_wrong_columns_are_refused(tmp_path):
    batch = pa.record_batch({"k": [1], "a": [2]})
    for ids in [(0, 9), (1, 2), (0, 0), (0, 1, 2)]:
        columns = tuple(ColumnId(i) for i in ids)
        data = replicated_ops.encode(WriteOp(RowOp.UPSERT, 0, columns, False, message(batch)))
        driver = Driver(str(tmp_path / f"t{ids}"))
        with pytest.raises(Corrupt):
            driver.tablet.apply([driver.entry(data)])
        with pytest.raises(AssertionError, match="failed before"):
            driver.tablet.apply([driver.entry(payload(INT_KEY, RowOp.UPSERT, numbered(0, 1)))])


def test_operation_of_newer_version_is_refused():
    data = bytearray(payload(INT_KEY, RowOp.UPSERT, numbered(0, 1)))
    data[0] = 2
    with pytest.raises(BadVersion, match=r"version 2.* or it is damaged.* else copy the replica"):
        replicated_ops.decode(bytes(data))


def test_results_survive_the_wire_and_damage_is_refused():
    errors = [
        RowError(3, "not_found", "there is none"),
        RowError(2**31, "x", ""),
        RowError(4, "x", "é"),
    ]
    data = replicated_ops.encode_result(7, errors)
    assert replicated_ops.decode_result(data) == (7, errors)
    for length in range(len(data)):
        with pytest.raises(Corrupt):
            replicated_ops.decode_result(data[:length])
    with pytest.raises(BadVersion, match=r"version 2.* or it is damaged"):
        replicated_ops.decode_result(b"\x02" + data[1:])


@pytest.mark.parametrize("head", [b"\x09\x01", b"\x02\xff"])
def test_operation_or_result_of_a_transaction_of_unknown_version_or_number_may_be_damaged(head):
    operation = transaction_ops.encode(KeepOp(b"t" * 16))
    result = transaction_ops.encode_result(TransactionResult(TransactionOutcome.DONE, 7))
    for decode, data in (
        (transaction_ops.decode, operation),
        (transaction_ops.decode_result, result),
    ):
        with pytest.raises(BadVersion, match="or it is damaged"):
            decode(head + data[2:])
