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
    """One kill.

    Attributes:
        name: of the server.
        led: what it led, in words.
        moment: when it was, on the monotonic clock.
        gap_s: longest time without an acknowledged write.
    """

    name: str
    led: str
    moment: float
    gap_s: float


def kill_tserver(cluster: MiniCluster, probe: Probe, checks: Checks) -> Kill:
    """Kill the tablet server that leads most of the flights; return what happened."""
    leaders = Counter(cluster.leaders("flights").values())
    victim, count = leaders.most_common(1)[0]
    led = "one of the flights' tablets" if count == 1 else f"{count} of the flights' tablets"
    return _kill(cluster, probe, checks, victim, led)


def kill_master(cluster: MiniCluster, probe: Probe, checks: Checks) -> Kill:
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
    return happened


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
    return Kill(victim, led, moment, probe.longest_gap_s(moment, time.monotonic()))
