"""The faults: functions of a context and a number that inject, check and end one; they return its text.

While a majority can communicate and sync, every tablet must acknowledge writes (`probe`) before the fault
ends. Between two faults the caller waits until `ksck` reports no problem.
"""

import re
from collections.abc import Callable

from tests.cluster.storm import ksck
from tests.cluster.support.workload import create
from tests.faults.support.fault_context import Scene
from tests.faults.support.hosts import Host, heal
from tests.faults.support.syscalls import SYNCS, WRITES, injected
from tests.waiting import wait_until

Fault = Callable[[Scene, int], str]


def power(scene: Scene, number: int) -> str:
    """Power failure of one machine, or of all at once, and restart."""
    machines = [0, 1, 2] if number % 5 in (1, 3) else [scene.leading_machine()]
    scene.yard.cut(machines)
    if len(machines) == 1:
        scene.storm.probe()
    scene.yard.power_on(machines)
    if len(machines) == 3:
        scene.yard.wait_healthy()
        scene.storm.probe()
    for name in scene.yard.names:
        damaged = re.findall(r".*(?: is damaged|replica of .* failed).*", scene.yard.log(name))
        assert not damaged, f"{name} calls a torn tail damage: {damaged[:3]}"
    return f"power cut of machines {machines}"


def storm(scene: Scene, number: int) -> str:
    """A tablet server that leads, a master, or one of each, is killed with -9 or stopped for a while."""
    victims = scene.storm.victims()
    killed = [v for v in victims if scene.random.random() < 0.4]
    stopped = [v for v in victims if v not in killed]
    for name in victims:
        (scene.yard.kill if name in killed else scene.yard.pause)(name)
    scene.storm.probe()
    for name in killed:
        scene.yard.start(name, wait=False)
    for name in stopped:
        scene.yard.resume(name)
    return f"kill -9 of {killed}, SIGSTOP of {stopped}"


def partition(scene: Scene, number: int) -> str:
    """The machine of a leader is cut off from others, in one of six ways."""
    yard, machine = scene.yard, scene.leading_machine()
    alone, others = yard.hosts[machine], yard.others(machine)
    way = PARTITIONS[number % len(PARTITIONS)]
    try:
        way(scene, alone, others)
        terms = scene.terms(f"tserver-{machine}") if way is _both_ways else {}
        scene.storm.probe()
        if terms:
            later = scene.terms(f"tserver-{machine}")
            assert later == terms, f"cut off, machine {machine} went from terms {terms} to {later}"
    finally:
        heal(yard.hosts)
    return f"machine {machine}: {(way.__doc__ or '').rstrip('.').lower()}"


def _both_ways(scene: Scene, alone: Host, others: list[Host]) -> None:
    """Cut off."""
    alone.hear_nothing_from(*others)
    for other in others:
        other.hear_nothing_from(alone)


def _deaf(scene: Scene, alone: Host, others: list[Host]) -> None:
    """Its messages arrive; it receives none."""
    alone.hear_nothing_from(*others)


def _mute(scene: Scene, alone: Host, others: list[Host]) -> None:
    """It receives messages; its own are lost."""
    for other in others:
        other.hear_nothing_from(alone)


def _bridge(scene: Scene, alone: Host, others: list[Host]) -> None:
    """Reached by one machine only, which reaches all."""
    far = scene.random.choice(others)
    alone.hear_nothing_from(far)
    far.hear_nothing_from(alone)


def _flapping(scene: Scene, alone: Host, others: list[Host]) -> None:
    """Cut off and back, again and again."""
    for _ in range(6):
        _both_ways(scene, alone, others)
        scene.last(scene.random.uniform(0.1, 0.8))
        heal(scene.yard.hosts)
        scene.last(scene.random.uniform(0.1, 0.8))


def _apart(scene: Scene, alone: Host, others: list[Host]) -> None:
    """All machines are partitioned from each other: no write is acknowledged."""
    for host in scene.yard.hosts:
        host.hear_nothing_from(*(h for h in scene.yard.hosts if h is not host))
    seen = [-1, scene.workload.acknowledged]
    while seen[-1] != seen[-2]:  # what was under way ends, and a lease holds for a moment
        assert len(seen) < 20, f"operations are acknowledged without a majority: {seen}"
        scene.last(2.0)
        seen.append(scene.workload.acknowledged)
    heal(scene.yard.hosts)


PARTITIONS = (_both_ways, _deaf, _mute, _bridge, _flapping, _apart)

FAILED = "failed for good"
"""Text in a server's log after a disk error of its write-ahead log."""


def disk(scene: Scene, number: int) -> str:
    """The syncs or writes of one server fail, or are slow."""
    role, calls, what = DISKS[number % len(DISKS)]
    machine = scene.leading_machine()
    name = scene.yard.leader_master() if role == "master" else f"tserver-{machine}"
    first, seen = scene.random.randrange(1, 30), scene.yard.log(name).count(FAILED)
    with injected(scene.yard.pid(name), calls, what.format(first=first)):
        if "delay" in what:
            scene.go_on(100)
            scene.storm.probe()
            return f"{name}: slow {calls}"
        if (
            role == "master"
        ):  # a quiet master syncs nothing: another takes over in the middle of this
            with scene.yard.connect() as client:
                create(client, f"made-{number}", buckets=1)
        _sees_the_failure(scene, name, seen)
        scene.storm.probe()
    assert scene.yard.running(name), f"{name} ended"
    scene.yard.kill(name)  # what its disk holds is unknown, so that only a new start helps
    scene.yard.start(name, wait=False)
    return f"{name}: {calls} fail"


def _sees_the_failure(scene: Scene, name: str, seen: int) -> None:
    """The server reports it in its log and in its status."""
    wait_until(lambda: scene.yard.log(name).count(FAILED) > seen, f"{name} logs the error", 60)
    address = scene.yard.address(name)
    wait_until(
        lambda: any(address in p and "FAILED" in p and "rror" in p for p in ksck(scene.yard).problems),
        f"ksck names {name} with the error", 60, poll_s=0.2,
    )  # fmt: skip


DISKS = (
    ("tserver", SYNCS, "error=EIO:when={first}+"),
    ("tserver", WRITES, "error=EIO:when={first}+"),
    ("tserver", SYNCS, "delay_enter=200000"),
    ("master", "fdatasync", "error=EIO:when=1+"),
    ("tserver", SYNCS, "error=EIO:when={first}"),
)
"""Role, system calls, their strace action. The last one fails once, then the disk works.

The log syncs with fdatasync; fsync is what the clock's limit and whole files are synced with. A server that
cannot make its clock's limit durable drops what others send, so that its log may have nothing to do.
"""

KINDS: dict[str, Fault] = {"power": power, "storm": storm, "partition": partition, "disk": disk}
