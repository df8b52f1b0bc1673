"""Staged transactions in files: flushes, compactions, copies, crashes and restarts."""

import random

import pytest

from nyala.common.errors import Corrupt
from nyala.storage.sections import Sections
from nyala.tablet.files import manifest
from nyala.tablet.files.file_kind import FileKind
from nyala.tablet.files.replicated_ops import RowOp
from nyala.tablet.files.transaction_ops import TransactionOutcome
from nyala.tablet.tablet import Tablet
from tests.sim.world.files import SimDisk
from tests.sim.world.loop import ProcessDied
from tests.unit.tablet.support.tablet_support import Driver, numbered
from tests.unit.tablet.support.transaction_support import T1, T2, Transactions


def staged_files(driver):
    return [n for n in driver.files.list(driver.directory) if n.endswith(".stg")]


def values(driver, at=None):
    return {r["k"]: r["a"] for r in driver.rows(at)}


@pytest.fixture
def txns(driver):
    driver.write(RowOp.INSERT, numbered(0, 4))
    return Transactions(driver)


def test_tablet_that_knows_no_transaction_has_the_same_manifest_as_before(driver, txns):
    driver.flush()
    data = driver.files.read(f"{driver.directory}/{manifest.NAME}")
    assert manifest.decode(data, "m").stages.files == []
    assert Sections(memoryview(data), "m", FileKind.MANIFEST).tags == [1, 2]


def test_manifest_with_transactions_is_refused_by_a_release_without_them(driver, txns):
    txns.upsert(T1, 1)
    driver.flush()
    data = driver.files.read(f"{driver.directory}/{manifest.NAME}")
    with pytest.raises(Corrupt, match="magic"):
        Sections(memoryview(data), "m", FileKind.MANIFEST)
    assert T1 in [s.transaction for s in manifest.decode(data, "m").stages.stages]


@pytest.mark.parametrize("when", ["staged", "prepared"])
def test_stage_survives_flush_and_restart_without_its_log(driver, txns, when):
    txns.upsert(T1, 1, 9, a=7)
    txns.upsert(T1, 2, a=8, part="b")
    held = txns.prepare(T1).time if when == "prepared" else None
    assert driver.tablet.unflushed_bytes() > 500
    driver.flush()
    assert driver.tablet.unflushed_bytes() == 0
    assert len(staged_files(driver)) == 1
    driver.reopen()
    assert driver.tablet.store.stages.earliest == held
    again = txns.prepare(T1)
    assert (again.outcome, again.time) == (TransactionOutcome.DONE, held or driver.now)
    txns.resolve(T1, again.time + 1)
    assert values(driver) == {0: 0, 1: 7, 2: 8, 3: 3, 9: 7}
    driver.flush()
    assert staged_files(driver) == []
    assert driver.tablet.store.stages.ended == {T1: again.time + 1}


def test_batches_of_several_flushes_are_applied_from_their_files(driver, txns):
    for number in range(3):
        txns.upsert(T1, 10 + number, a=number)
        driver.flush()
    txns.upsert(T1, 13, a=3)
    assert len(staged_files(driver)) == 3
    txns.commit(T1)
    assert {k: v for k, v in values(driver).items() if k >= 10} == {10: 0, 11: 1, 12: 2, 13: 3}


@pytest.mark.parametrize("work", ["flush", "compact"])
@pytest.mark.parametrize("moment", ["before", "during", "after"])
def test_ends_at_commit_time_below_a_flush_point_are_kept(driver, txns, work, moment):
    """The flush point is above the commit time, and the resolve comes after it in the log."""
    if work == "compact":  # two rowsets; a flush takes the versions from memory
        driver.flush()
        driver.write(RowOp.UPSERT, numbered(3, 4, a=3))
    txns.upsert(T1, 1, a=7)
    txns.stage(T1, RowOp.DELETE, [{"k": 2}], ["k"])
    at = txns.prepare(T1).time + 1
    txns.upsert(T2, 3)  # further entries of the log
    if moment == "before":
        txns.resolve(T1, at)
    if work == "compact":  # of what this flush has written
        assert driver.flush()
        build = driver.tablet.prepare_compaction(None, force=True)
    else:
        build = driver.tablet.prepare_flush(driver.flush_point())
    assert build is not None
    install = build()
    if moment == "during":
        txns.resolve(T1, at)
    install()
    if moment == "after":
        txns.resolve(T1, at)
    expected = {0: 0, 1: 7, 3: 3}

    def check():
        assert values(driver) == expected
        assert values(driver, at - 1) == {0: 0, 1: 1, 2: 2, 3: 3}

    check()
    driver.flush()
    check()
    driver.reopen()
    check()
    driver.compact()
    driver.reopen()
    check()


def test_compaction_before_a_resolve_leaves_the_versions_that_it_ends(driver, txns):
    for begin in (4, 8):
        driver.flush()
        driver.write(RowOp.INSERT, numbered(begin, begin + 4))
    txns.stage(T1, RowOp.UPSERT, [{"k": 1, "a": 7}, {"k": 5, "a": 8}], ["k", "a"])
    at = txns.prepare(T1).time + 1
    txns.upsert(T2, 3)
    driver.flush()
    txns.resolve(T1, at)
    assert driver.compact()  # its files represent the flush point, before the resolve
    driver.reopen()
    rows = {r["k"]: (r["a"], r["s"]) for r in driver.rows()}
    assert (rows[1], rows[5]) == ((7, "s1"), (8, "s5"))
    assert {r["k"]: r["a"] for r in driver.rows(at - 1)}[1] == 1


def test_history_is_kept_from_every_prepare_time(driver, txns):
    driver.flush()
    txns.upsert(T1, 9)
    held = txns.prepare(T1).time
    driver.write(RowOp.UPSERT, numbered(0, 4))  # no leader proposes it
    driver.flush()
    driver.compact(driver.now)
    assert driver.tablet.horizon <= held
    assert values(driver, held) == {k: k for k in range(4)}


def test_copy_of_checkpoint_has_the_stages(driver, txns, tmp_path):
    txns.upsert(T1, 1, a=7)
    held = txns.prepare(T1).time
    driver.flush()
    checkpoint = driver.tablet.checkpoint()
    txns.resolve(T1, held + 1)
    driver.flush()
    place = tmp_path / "copy"
    place.mkdir()
    for file in checkpoint.files:
        data = driver.files.read(f"{driver.directory}/{file.name}")
        (place / file.name).write_bytes(data)
    (place / manifest.NAME).write_bytes(checkpoint.manifest_bytes)
    checkpoint.release()
    assert staged_files(driver) == []
    copied = Tablet.open(driver.files, str(place))
    assert copied.store.stages.earliest == held
    copied.apply(driver.log[copied.flush_point.op.index :])
    assert {r["k"]: r["a"] for b in copied.view().scan(driver.now) for r in b.to_pylist()}[1] == 7


def test_damaged_file_of_a_stage_is_found_and_changes_nothing(driver, txns, tmp_path):
    txns.upsert(T1, 1, a=7)
    txns.upsert(T1, 2, a=8)
    held = txns.prepare(T1).time
    driver.flush()
    [name] = staged_files(driver)
    path = tmp_path / "t" / name
    data = bytearray(path.read_bytes())
    data[data.rindex(b"ARROW") if b"ARROW" in data else len(data) // 2] ^= 1
    path.write_bytes(bytes(data))
    driver.reopen()
    before = values(driver)
    with pytest.raises(Corrupt, match="stg"):
        txns.resolve(T1, held + 1)
    assert values(driver) == before


def test_flush_that_fails_keeps_the_batches(driver, txns, monkeypatch):
    txns.upsert(T1, 1, a=7)
    kept = driver.tablet.unflushed_bytes()
    build = driver.tablet.prepare_flush(driver.flush_point())
    full = OSError(28, "full")

    def refuse(path, buffers):
        raise full

    with monkeypatch.context() as patch:
        patch.setattr(driver.files, "write_new", refuse)
        with pytest.raises(OSError, match="full"):
            build()
    assert staged_files(driver) == []
    assert driver.tablet.unflushed_bytes() == kept
    assert driver.flush()
    driver.reopen()
    txns.commit(T1)
    assert values(driver)[1] == 7


def test_stage_that_ends_during_a_flush_leaves_no_memory_and_no_file_after_the_next(driver, txns):
    txns.upsert(T1, 1)
    build = driver.tablet.prepare_flush(driver.flush_point())
    txns.drop(T1)
    build()()
    assert driver.tablet.unflushed_bytes() == 0
    driver.flush()
    assert staged_files(driver) == []


@pytest.mark.parametrize("power_cut", [False, True], ids=["kill", "power_cut"])
def test_crash_between_file_operations_of_a_flush_loses_no_stage(power_cut):
    finished, steps = False, 0
    while not finished:
        steps += 1
        assert steps < 60
        disk = SimDisk(random.Random(steps))
        driver = Driver("data/t", files=disk.mount())
        txns = Transactions(driver)
        driver.write(RowOp.INSERT, numbered(0, 4))
        txns.upsert(T2, 2, a=9)
        driver.flush()
        txns.upsert(T1, 1, a=7)
        held = txns.prepare(T1).time
        disk.die_after(steps)
        try:
            assert driver.flush()
            finished = True
        except ProcessDied:
            (disk.crash if power_cut else disk.kill)()
        disk.die_at = None
        driver.files = disk.mount()
        driver.reopen()
        names = driver.files.list("data/t")
        assert names == sorted(manifest.load(driver.files, "data/t").file_names())
        txns.resolve(T1, held + 1)
        txns.commit(T2)
        assert values(driver) == {0: 0, 1: 7, 2: 9, 3: 3}
    assert steps > 8
