"""A tablet in each state of storage before or after an alteration."""

from tests.unit.tablet.support.tablet_support import Driver

STAGES = ["memory", "flushed", "merged", "reopened", "replayed"]


def bring(driver: Driver, stage: str) -> None:
    """Move applied rows to the storage of the stage."""
    if stage == "replayed":
        driver.reopen()
    elif stage != "memory":
        assert driver.flush()
        if stage == "merged":
            driver.compact()
        elif stage == "reopened":
            driver.reopen()


def by_key(driver: Driver, at=None, **kw):
    return {r["k"]: {n: v for n, v in r.items() if n != "k"} for r in driver.rows(at, **kw)}
