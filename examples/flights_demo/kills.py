"""kill -9 of servers that lead, while acknowledged writes flow; what happened, for the summary."""

import time
from collections import Counter
from dataclasses import dataclass

import pyarrow as pa

import nyala
from examples.flights_demo.checks import Checks
from examples.flights_demo.probe import Probe
from nyala.testing import MiniCluster

RESUME_S = 60.0


@dataclass(frozen=True, slots=True)
class Kill:
    """One kill: who, what it led, and the longest time without an acknowledged write."""

    name: str
    led: str
    gap_s: float


def kill_tserver(cluster: MiniCluster, probe: Probe, checks: Checks) -> tuple[str, Kill]:
    """Kill the tablet server that leads most of the flights; return its name and what happened."""
    leaders = Counter(cluster.leaders("flights").values())
    victim, count = leaders.most_common(1)[0]
    return victim, _kill(cluster, probe, checks, victim, f"{count} of the flights' tablets")


def kill_master(cluster: MiniCluster, probe: Probe, checks: Checks) -> tuple[str, Kill]:
    """Kill the leader master, and create a table by a fresh client while it is down."""
    victim = cluster.leader_master()
    happened = _kill(cluster, probe, checks, victim, "the sys catalog")
    with nyala.connect(cluster.masters) as fresh:
        made = fresh.create_table(
            "made_meanwhile", pa.schema([("k", pa.int64()), ("v", pa.string())]), ["k"]
        )
        made.upsert([{"k": 1, "v": "while the leader master was down"}]).raise_for_errors()
        good = made.get({"k": 1}) == {"k": 1, "v": "while the leader master was down"}
    checks.add(
        good and not cluster.running(victim), f"a new client creates a table while {victim} is down"
    )
    return victim, happened


def _kill(cluster: MiniCluster, probe: Probe, checks: Checks, victim: str, led: str) -> Kill:
    moment = time.monotonic()
    cluster.kill(victim)
    while not probe.resumed_since(moment) and time.monotonic() < moment + RESUME_S:
        time.sleep(0.05)
    resumed = probe.resumed_since(moment) and not probe.failure and not cluster.running(victim)
    checks.add(
        resumed,
        f"after kill -9 of {victim} writes to every tablet go on before it is back",
        probe.failure,
    )
    return Kill(victim, led, probe.longest_gap_s(moment, time.monotonic()))
