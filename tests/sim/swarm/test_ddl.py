"""Definitions under faults of masters and tablet servers: the catalog's invariants and a model of it."""

import pytest

from tests.sim.runs.ddl_run import run_ddl


@pytest.mark.row("S0.46", "S0.50")
@pytest.mark.parametrize("seed", [4, 10])
def test_tables_equal_results_given_to_clients(seed):
    found = run_ddl(seed, seconds=12, pause_us=250_000)
    assert found.counted_s, "definitions were frequent enough to count"
    assert found.faults > 2
    checks = found.checks
    whole = "catalog whole", "memory equals disk", "memory not ahead of disk"
    assert min(checks[what] for what in whole) > 10
    assert checks["deletions"]
    assert checks["tables whole"]
