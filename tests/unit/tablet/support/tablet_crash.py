"""A tablet with work for flushes and compactions, for the tests of crashes and errors."""

from nyala.tablet.files.replicated_ops import RowOp
from tests.sim.world.files import SimDisk
from tests.unit.tablet.support.tablet_support import Driver, numbered


def prepared(disk: SimDisk) -> Driver:
    """Two rowsets with `del` files, and a memory rowset: a flush and a merge both have work."""
    driver = Driver("data/t", files=disk.mount())
    driver.write(RowOp.INSERT, numbered(0, 6))
    driver.flush()
    driver.write(RowOp.UPSERT, numbered(3, 9))
    driver.write(RowOp.DELETE, [{"k": 0}], ["k"])
    driver.flush()
    driver.write(RowOp.UPDATE, [{"k": 1, "a": 50}, {"k": 8, "a": 51}], ["k", "a"])
    driver.write(RowOp.DELETE, [{"k": 2}], ["k"])
    return driver


def everything(driver: Driver) -> list[object]:
    """Return everything readable: the rows at each time, and all changes."""
    found: list[object] = [driver.rows(o.stamp, ordered=True) for o in driver.log]
    feed = driver.tablet.view().changes(0, driver.now, net=False)
    return [*found, [r for b in feed for r in b.to_pylist()]]
