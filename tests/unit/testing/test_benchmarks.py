"""The benchmarks use names that exist: each module can be imported."""

import importlib
from pathlib import Path

import pytest

import benchmarks
from benchmarks.etcd import free_ports
from benchmarks.load import Clients

pytestmark = pytest.mark.full
MODULES = sorted(p.stem for p in Path(benchmarks.__path__[0]).glob("[a-z]*.py"))


@pytest.mark.parametrize("name", MODULES)
def test_module_of_a_benchmark_is_importable(name):
    importlib.import_module(f"benchmarks.{name}")


def test_servers_of_consensus_alone_start_and_write(tmp_path):
    hosts = Clients("benchmarks.raft_host", [str(tmp_path), ",".join(map(str, free_ports(3)))], 3)
    try:
        rates = (hosts.measure(3, 1.0) for _ in range(60))  # the first ones elect a leader
        assert any(rate.ops_s > 0 for rate in rates)
    finally:
        hosts.close()
