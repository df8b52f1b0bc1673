"""Definitions under faults of masters and tablet servers: the catalog's invariants and a model of it."""

from collections import Counter

import pytest

from tests.sim.runs.ddl_run import run_ddl


@pytest.mark.row("S0.46", "S0.50")
@pytest.mark.parametrize("seed", [4, pytest.param(10, marks=pytest.mark.full)])
def test_tables_equal_results_given_to_clients(seed):
    run_ddl(seed, seconds=12, pause_us=250_000)


@pytest.mark.full
def test_every_rule_of_the_catalog_is_checked_while_servers_die():
    checks: Counter[str] = Counter()
    faults, counted_s = 0, 0.0
    for seed in range(20, 26):
        found = run_ddl(seed, seconds=12, pause_us=250_000)
        checks += found.checks
        faults += found.faults
        counted_s += found.counted_s
    print(checks, faults, counted_s)
    assert counted_s >= 36, "definitions were frequent enough to count"
    assert faults > 12
    whole = "catalog whole", "memory equals disk", "memory not ahead of disk"
    assert min(checks[what] for what in whole) > 60
    assert checks["deletions"]
    assert checks["tables whole"]
