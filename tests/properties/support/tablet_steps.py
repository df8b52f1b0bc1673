"""Random steps on a tablet: each is a name and a function of (world, random numbers).

Writes have every form; maintenance runs without and beside writes, with errors or up to a power failure;
reads are compared with the model. `after` has the checks after any step.
"""

import errno
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from nyala.common.errors import HistoryGone
from nyala.tablet.files import manifest
from nyala.tablet.files.replicated_ops import RowOp
from nyala.tablet.maintain.maintenance import Build
from nyala.tablet.tablet import Tablet
from tests.properties.support.tablet_model import WRITES
from tests.properties.support.tablet_world import World
from tests.sim.world.loop import ProcessDied

Step = Callable[[World, random.Random], None]


def write(world: World, chance: random.Random, op: RowOp, **shape: Any) -> None:
    world.write(chance, op, **shape)


def write_group(world: World, chance: random.Random) -> None:
    world.write_group(chance, chance.randrange(2, 6))


def write_run(world: World, chance: random.Random) -> None:
    world.write_group(chance, chance.randrange(2, 9), alike=True)


def alter(world: World, chance: random.Random) -> None:
    world.alter(chance)


def write_for_an_older_schema(world: World, chance: random.Random) -> None:
    world.write_for_an_older_schema(chance)


def flush(world: World, chance: random.Random) -> None:
    world.driver.flush()
    assert world.driver.tablet.unflushed_bytes() == 0
    assert world.driver.tablet.flush_point == world.driver.flush_point()


def _merge(world: World, chance: random.Random, *, force: bool, collect: bool) -> Build | None:
    """Fix a compaction; with `collect`, of history up to some time."""
    tablet = world.driver.tablet
    horizon = world.some_time(chance) if collect else None
    build = tablet.prepare_compaction(horizon, force=force)
    if build is None:
        return None

    def built() -> Callable[[], None]:
        install = build()
        return partial(_installed, world, install, world.horizon if horizon is None else horizon)

    return built


def _installed(world: World, install: Callable[[], None], horizon: int) -> None:
    install()
    assert world.driver.tablet.horizon in (world.horizon, max(horizon, world.horizon))
    world.horizon = world.driver.tablet.horizon


def compact(world: World, chance: random.Random, *, force: bool, collect: bool) -> None:
    build = _merge(world, chance, force=force, collect=collect)
    if build is not None:
        build()()


def _some_work(world: World, chance: random.Random, kind: str) -> Build | None:
    if kind == "flush":
        return world.driver.tablet.prepare_flush(world.driver.flush_point())
    return _merge(world, chance, force=True, collect=chance.random() < 0.5)


def _write_or_alter(world: World, chance: random.Random) -> None:
    if chance.random() < 0.2:
        world.alter(chance)
    else:
        world.write(chance, chance.choice(list(RowOp)))


def beside_writes(world: World, chance: random.Random, kind: str) -> None:
    """Writes before the build, and between build and install; only one such work at a time."""
    build = _some_work(world, chance, kind)
    if build is None:
        return
    assert world.driver.tablet.prepare_flush(world.driver.flush_point()) is None
    assert world.driver.tablet.prepare_compaction(None, force=True) is None
    for _ in range(chance.randrange(3)):
        _write_or_alter(world, chance)
    install = build()
    for _ in range(chance.randrange(3)):
        _write_or_alter(world, chance)
    world.check_now()
    install()


def dies(world: World, chance: random.Random, kind: str) -> None:
    """A power cut or kill between any two file operations of a flush or compaction."""
    world.disk.die_after(chance.randrange(1, 24))
    try:
        build = _some_work(world, chance, kind)
        if build is not None:
            build()()
    except ProcessDied:
        world.reopen(power_cut=chance.random() < 0.5)
    world.disk.die_at = None


def fails(world: World, chance: random.Random, kind: str, error: int) -> None:
    """A full or failing disk during a step: the old state is served, and a later attempt succeeds."""
    faults = world.disk.faults
    if error == errno.ENOSPC:
        faults.capacity_bytes = world.disk.used_bytes() + chance.randrange(4_000)
    else:
        faults.write_eio_rate = faults.sync_eio_rate = 0.3
    try:
        build = _some_work(world, chance, kind)
        if build is not None:
            build()()
    except OSError as err:
        if err.errno != error:
            raise
    faults.capacity_bytes = None
    faults.write_eio_rate = faults.sync_eio_rate = 0.0
    world.check_now()
    if chance.random() < 0.5:
        world.reopen(power_cut=chance.random() < 0.5)


def reopen(world: World, chance: random.Random, *, power_cut: bool) -> None:
    world.reopen(power_cut=power_cut)


def copy(world: World, chance: random.Random) -> None:
    """A checkpoint's files are a complete tablet in any folder, regardless of concurrent changes."""
    driver, files, source = world.driver, world.driver.files, world.driver.directory
    held = driver.tablet.checkpoint()
    for _ in range(chance.randrange(3)):
        world.write(chance, chance.choice(list(RowOp)))
        _some_work_done(world, chance)
    files.remove_tree("data/copy")
    files.make_dir("data/copy")
    for file in held.files:
        data = files.read(f"{source}/{file.name}")
        assert len(data) == file.size_bytes
        files.write_new(f"data/copy/{file.name}", [data])
    files.write_new(f"data/copy/{manifest.NAME}", [held.manifest_bytes])
    held.release()
    needed = manifest.load(files, source).file_names()
    assert not {f.name for f in held.files} & set(files.list(source)) - set(needed)
    copied = Tablet.open(files, "data/copy", **driver.kwargs)
    assert copied.flush_point == held.flush_point
    copied.apply(driver.log[copied.flush_point.op.index :])
    driver.tablet, whole = copied, driver.tablet
    world.check_now()
    world.check_scan(world.some_time(chance))
    driver.tablet = whole


def _some_work_done(world: World, chance: random.Random) -> None:
    build = _some_work(world, chance, chance.choice(["flush", "compact"]))
    if build is not None:
        build()()


def scan(world: World, chance: random.Random) -> None:
    world.check_scan(world.some_time(chance))


def query(world: World, chance: random.Random, *, past: bool) -> None:
    world.check_query(chance, world.some_time(chance) if past else world.now)


def get(world: World, chance: random.Random, *, count: int) -> None:
    keys = chance.choices(world.keys, k=count)
    world.check_get(world.some_time(chance) if chance.random() < 0.5 else world.now, keys)


def changes(world: World, chance: random.Random, *, net: bool) -> None:
    since, until = sorted((world.some_time(chance), world.some_time(chance)))
    world.check_changes(chance, since, until, net=net)


def hold(world: World, chance: random.Random) -> None:
    world.hold(world.some_time(chance))
    world.check_held()


def read_too_early(world: World, chance: random.Random) -> None:
    """Every kind of read below the horizon is refused."""
    if not world.horizon:
        return
    view, at = world.driver.tablet.view(), world.horizon - 1
    for read in (view.scan, view.count, lambda t: view.changes(t, world.now)):
        with pytest.raises(HistoryGone):
            read(at)
    with pytest.raises(HistoryGone):
        world.check_get(at, world.keys)


WRITING: dict[str, Step] = {
    **{op.name.lower(): partial(write, op=op) for op in WRITES},
    "mixed": partial(write, op=RowOp.MIXED),
    "partial_upsert": partial(write, op=RowOp.UPSERT, partial=True),
    "partial_update": partial(write, op=RowOp.UPDATE, partial=True),
    "one_key_many_times": partial(write, op=RowOp.MIXED, count=50),
    "all_or_nothing": partial(write, op=RowOp.MIXED, whole=True),
    "insert_all_or_nothing": partial(write, op=RowOp.INSERT, whole=True),
    "write_group": write_group,
    "write_run": write_run,
    "write_for_an_older_schema": write_for_an_older_schema,
    "alter": alter,
}
FILING: dict[str, Step] = {
    "flush": flush,
    "compact_chosen": partial(compact, force=False, collect=False),
    "compact_all": partial(compact, force=True, collect=False),
    "collect_chosen": partial(compact, force=False, collect=True),
    "collect_all": partial(compact, force=True, collect=True),
    "flush_beside_writes": partial(beside_writes, kind="flush"),
    "compact_beside_writes": partial(beside_writes, kind="compact"),
}
FAILING: dict[str, Step] = {
    "reopen": partial(reopen, power_cut=False),
    "power_cut": partial(reopen, power_cut=True),
    "die_in_flush": partial(dies, kind="flush"),
    "die_in_compaction": partial(dies, kind="compact"),
    "full_in_flush": partial(fails, kind="flush", error=errno.ENOSPC),
    "full_in_compaction": partial(fails, kind="compact", error=errno.ENOSPC),
    "error_in_flush": partial(fails, kind="flush", error=errno.EIO),
    "error_in_compaction": partial(fails, kind="compact", error=errno.EIO),
    "copy": copy,
}
READING: dict[str, Step] = {
    "scan": scan,
    "query": partial(query, past=False),
    "query_past": partial(query, past=True),
    "get_one": partial(get, count=1),
    "get_many": partial(get, count=9),
    "net_changes": partial(changes, net=True),
    "changes_by_version": partial(changes, net=False),
    "hold": hold,
    "read_too_early": read_too_early,
}
STEPS = {**WRITING, **FILING, **FAILING, **READING}


def run(world: World, name: str, seed: int) -> None:
    """Run one step and the checks after it."""
    STEPS[name](world, random.Random(seed))
    world.check_now()
    if world.held:
        world.check_held()
