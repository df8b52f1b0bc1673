"""The benchmarks use names that exist: each module can be imported."""

import importlib
from pathlib import Path

import pytest

pytestmark = pytest.mark.full
MODULES = sorted(p.stem for p in (Path(__file__).parents[3] / "benchmarks").glob("[a-z]*.py"))


@pytest.mark.parametrize("name", MODULES)
def test_module_of_a_benchmark_is_importable(name):
    importlib.import_module(f"benchmarks.{name}")


def test_servers_of_consensus_alone_start_and_write(tmp_path):
    ports = ",".join(map(str, importlib.import_module("benchmarks.etcd").free_ports(3)))
    load = importlib.import_module("benchmarks.load")
    hosts = load.Clients("benchmarks.raft_host", [str(tmp_path), ports], 3)
    try:
        rates = (hosts.measure(3, 1.0) for _ in range(60))  # the first ones elect a leader
        assert any(rate.ops_s > 0 for rate in rates)
    finally:
        hosts.close()
