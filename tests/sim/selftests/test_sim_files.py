"""The simulated disk: losses in power failures, durable data, and injected faults."""

import errno
import random

import pytest

from tests.sim.world.files import SimDisk
from tests.sim.world.loop import ProcessDied


def disk(seed: int = 1) -> SimDisk:
    made = SimDisk(random.Random(seed))
    files = made.mount()
    files.make_dir("/d")
    return made


def after_crash(seed: int) -> tuple[bytes | None, list[str]]:
    """Sync 'aaaa', write 'bbbb' without sync, cut the power."""
    made = disk(seed)
    files = made.mount()
    file = files.open_append("/d/log")
    file.append([b"aaaa"])
    file.sync(data_only=True)
    files.sync_dir("/d")
    file.append([b"bb", b"bb"])
    files.rename("/d/log", "/d/moved")
    made.crash()
    files = made.mount()
    names = files.list("/d")
    return files.read(f"/d/{names[0]}"), names


def test_synced_bytes_survive_and_unsynced_bytes_are_lost_torn_or_kept():
    outcomes = [after_crash(seed) for seed in range(60)]
    contents = {content for content, _ in outcomes}
    assert all(c is not None and c.startswith(b"aaaa") for c in contents)
    assert {b"aaaa", b"aaaabbbb"} <= contents
    assert any(4 < len(c or b"") < 8 for c in contents)
    assert {tuple(names) for _, names in outcomes} == {("log",), ("moved",)}


def test_same_seed_loses_the_same_bytes():
    assert [after_crash(s) for s in range(20)] == [after_crash(s) for s in range(20)]


def test_sectors_of_unsynced_writes_survive_in_any_order():
    holes = 0
    for seed in range(60):
        made = disk(seed)
        files = made.mount()
        file = files.open_append("/d/log")
        file.preallocate(4096)
        file.sync(data_only=False)
        files.sync_dir("/d")
        file.append([b"x" * 2048])
        made.crash()
        data = made.mount().read("/d/log")
        assert len(data) == 4096
        sectors = [data[i] for i in range(0, 2048, 512)]
        holes += 0 in sectors and ord("x") in sectors[sectors.index(0) :]
    assert holes > 0


def test_created_name_is_durable_only_after_directory_sync():
    kept = set()
    for seed in range(40):
        made = disk(seed)
        made.mount().write_new("/d/new", [b"1"])
        made.crash()
        kept.add(made.mount().exists("/d/new"))
    assert kept == {False, True}
    made = disk()
    files = made.mount()
    files.write_new("/d/new", [b"1"])
    files.sync_dir("/d")
    made.crash()
    assert made.mount().read("/d/new") == b"1"


def test_recreated_directory_keeps_synced_content():
    for seed in range(40):
        made = disk(seed)
        files = made.mount()
        files.make_dir("/d/x")
        files.write_new("/d/x/old", [b"1"])
        files.remove_tree("/d/x")  # unsynced, until a directory is made beside it
        files.make_dir("/d/x")
        files.write_new("/d/x/new", [b"2"])
        files.sync_dir("/d/x")
        made.crash()
        assert made.mount().list("/d/x") == ["new"]


def test_moved_directory_is_durable_after_sync_of_new_parent():
    def places(seed: int, *, sync: bool) -> list[str]:
        made = disk(seed)
        files = made.mount()
        files.make_dir("/d/from/x")
        files.make_dir("/d/to")
        files.write_new("/d/from/x/f", [b"1"])
        files.sync_dir("/d/from/x")
        files.rename("/d/from/x", "/d/to/x")
        if sync:
            files.sync_dir("/d/to")
        made.crash()
        return [p for p in ("/d/from/x/f", "/d/to/x/f") if made.mount().exists(p)]

    assert {tuple(places(seed, sync=False)) for seed in range(40)} == {
        ("/d/from/x/f",),
        ("/d/to/x/f",),
    }
    assert {tuple(places(seed, sync=True)) for seed in range(40)} == {("/d/to/x/f",)}


def test_unsynced_removal_may_be_undone_with_complete_content():
    seen = set()
    for seed in range(40):
        made = disk(seed)
        files = made.mount()
        files.write_atomic("/d/a", b"content")
        files.remove("/d/a")
        made.crash()
        files = made.mount()
        seen.add(files.read("/d/a") if files.exists("/d/a") else None)
    assert seen == {None, b"content"}


def test_write_atomic_leaves_old_or_new_content_after_crash():
    seen = set()
    for seed in range(80):
        made = disk(seed)
        made.mount().write_atomic("/d/a", b"old")
        made.die_after(1 + seed % 5)
        try:
            made.mount().write_atomic("/d/a", b"new!")
        except ProcessDied:
            made.crash()
        seen.add(made.mount().read("/d/a"))
    assert seen == {b"old", b"new!"}


def test_kill_without_power_failure_keeps_written_data():
    made = disk()
    files = made.mount()
    files.open_append("/d/log").append([b"unsynced"])
    made.kill()
    with pytest.raises(ProcessDied):
        files.exists("/d/log")
    assert made.mount().read("/d/log") == b"unsynced"


def test_crash_during_append_leaves_a_prefix():
    lengths = set()
    for seed in range(60):
        made = disk(seed)
        files = made.mount()
        file = files.open_append("/d/log")
        made.die_after(1)
        with pytest.raises(ProcessDied):
            file.append([b"12345678"])
        made.kill()
        lengths.add(made.mount().size("/d/log"))
    assert {0, 8} < lengths


def test_failed_sync_is_not_repaired_by_later_sync():
    lost = 0
    for seed in range(40):
        made = disk(seed)
        files = made.mount()
        file = files.open_append("/d/log")
        files.sync_dir("/d")
        file.append([b"a" * 8])
        made.faults.sync_eio_rate = 1.0
        with pytest.raises(OSError, match="Input/output") as failed:
            file.sync(data_only=True)
        assert failed.value.errno == errno.EIO
        made.faults.sync_eio_rate = 0.0
        file.append([b"b" * 8])
        file.sync(data_only=True)
        made.crash()
        data = made.mount().read("/d/log")
        assert data[8:] == b"b" * 8
        lost += data[:8] != b"a" * 8
    assert lost > 0


def test_full_disk_refuses_growth_but_not_overwriting():
    made = disk()
    files = made.mount()
    file = files.open_append("/d/log")
    file.preallocate(100)
    made.faults.capacity_bytes = 120
    file.append([b"x" * 100])
    with pytest.raises(OSError, match="No space"):
        file.append([b"y" * 21])
    with pytest.raises(OSError, match="No space"):
        files.write_new("/d/other", [b"z"])
    assert files.free_bytes("/d") == 0
    assert files.read("/d/log")[:100] == b"x" * 100


def test_flipped_bits_are_injected_and_counted():
    made = disk()
    files = made.mount()
    files.write_new("/d/a", [bytes(1000)])
    made.faults.read_flip_rate = 1.0
    assert sum(files.read("/d/a")) > 0
    made.faults.read_flip_rate = 0.0
    assert sum(files.read("/d/a")) == 0
    made.flip_bit("/d/a", 10)
    assert files.read("/d/a")[10] != 0
    assert made.trace.counts["read_flip"] == 1


def test_memory_map_is_a_snapshot_that_outlives_the_file():
    made = disk()
    files = made.mount()
    files.write_new("/d/a", [b"abc"])
    view = files.map("/d/a")
    files.remove("/d/a")
    assert bytes(view) == b"abc"
    assert view.readonly


def test_file_lock_is_released_when_process_ends():
    made = disk()
    first = made.mount()
    assert first.lock("/d/lock")
    assert not first.lock("/d/lock")
    made.kill()
    assert made.mount().lock("/d/lock")


def test_directories_list_their_files_and_subdirectories():
    made = disk()
    files = made.mount()
    files.make_dir("/d/x/y")
    files.write_new("/d/x/f", [b""])
    assert files.list("/d") == ["x"]
    assert files.list("/d/x") == ["f", "y"]
    assert files.list("/nowhere") == []
    files.remove_tree("/d/x")
    assert files.list("/d") == []
    with pytest.raises(FileNotFoundError):
        files.read("/d/x/f")
    with pytest.raises(FileNotFoundError):
        files.open_append("/d/x/f")
