"""Checkpoints: the files of a cut stay as they are until released, and a copy of them is the tablet."""

import pytest

from nyala.common.alteration import AddColumn, DropColumn
from nyala.env.files import SystemFiles
from nyala.tablet.files.manifest import NAME
from nyala.tablet.files.replicated_ops import RowOp
from nyala.tablet.tablet import Tablet
from tests.unit.tablet.support.tablet_support import Driver, numbered, table_bytes


@pytest.fixture
def driver(tmp_path):
    made = Driver(str(tmp_path / "t"))
    for begin in range(0, 20, 10):
        made.write(RowOp.INSERT, numbered(begin, begin + 10))
        made.flush()
    made.write(RowOp.DELETE, [{"k": 3}], ["k"])
    made.flush()
    return made


def files_of(driver: Driver) -> set[str]:
    return set(driver.files.list(driver.directory))


def names(checkpoint) -> set[str]:
    return {f.name for f in checkpoint.files}


def change_everything(driver: Driver) -> None:
    driver.write(RowOp.UPSERT, numbered(5, 25))
    driver.alter(DropColumn("s"))
    driver.flush()
    driver.compact(driver.now)


def copy(driver: Driver, checkpoint, place) -> Tablet:
    """Copy a checkpoint in pieces, as a tablet copy, and open the copy."""
    place.mkdir()
    for file in checkpoint.files:
        path, data = f"{driver.directory}/{file.name}", b""
        while len(data) < file.size_bytes:
            data += driver.files.read(path, len(data), 1000)
        (place / file.name).write_bytes(data)
    (place / NAME).write_bytes(checkpoint.manifest_bytes)
    return Tablet.open(SystemFiles(), str(place))


def test_checkpoint_files_equal_tablet_at_the_cut(driver, tmp_path):
    at, expected = driver.now, table_bytes(driver.tablet.view().scan(driver.now, ordered=True))
    checkpoint = driver.tablet.checkpoint()
    change_everything(driver)
    assert names(checkpoint) <= files_of(driver)
    copied = copy(driver, checkpoint, tmp_path / "copy")
    assert copied.flush_point == checkpoint.flush_point
    assert copied.flush_point.stamp == at
    assert table_bytes(copied.view().scan(at, ordered=True)) == expected
    copied.apply(driver.log[copied.flush_point.op.index :])
    assert copied.info == driver.tablet.info
    now = [table_bytes(t.view().scan(driver.now, ordered=True)) for t in (copied, driver.tablet)]
    assert now[0] == now[1]


def test_files_are_removed_with_their_last_holder(driver):
    first = driver.tablet.checkpoint()
    driver.write(RowOp.UPSERT, numbered(30, 31))
    driver.flush()
    second = driver.tablet.checkpoint()
    assert names(first) < names(second)
    change_everything(driver)
    first.release()
    first.release()
    assert names(second) <= files_of(driver), "the other checkpoint still needs the files"
    second.release()
    assert files_of(driver) == {NAME, *names(driver.tablet.checkpoint())}


def test_release_keeps_current_files_and_files_being_written(driver):
    checkpoint = driver.tablet.checkpoint()
    checkpoint.release()
    assert names(checkpoint) <= files_of(driver), "the manifest still names the files"
    checkpoint = driver.tablet.checkpoint()
    driver.compact()
    driver.write(RowOp.UPSERT, numbered(0, 3))
    install = driver.tablet.prepare_flush(driver.flush_point())()
    new = files_of(driver) - names(checkpoint)
    checkpoint.release()
    assert files_of(driver) == new
    install()
    driver.alter(AddColumn("n", driver.schema.column("a").type))
    driver.reopen()
    assert [r["k"] for r in driver.rows(ordered=True)] == [0, 1, 2, *range(4, 20)]


def test_restart_releases_checkpoints(driver):
    checkpoint = driver.tablet.checkpoint()
    change_everything(driver)
    driver.reopen()
    assert not names(checkpoint) & files_of(driver)


def test_empty_tablet_has_checkpoint(tmp_path):
    driver = Driver(str(tmp_path / "t"))
    checkpoint = driver.tablet.checkpoint()
    assert checkpoint.files == ()
    assert not list(copy(driver, checkpoint, tmp_path / "copy").view().scan(0))
