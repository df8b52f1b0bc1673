"""The faults: functions of a context and a number that inject, check and end one; they return its text.

While a majority can communicate and sync, every tablet must acknowledge writes (`probe`) before the fault
ends. Between two faults the caller waits until `ksck` reports no problem.
"""

import re
from collections.abc import Callable

from tests.cluster.support.ksck import ksck
from tests.cluster.support.workload import create
from tests.faults.support.fault_context import FaultContext
from tests.faults.support.hosts import Host, heal
from tests.faults.support.syscalls import SYNCS, WRITES, injected
from tests.waiting import wait_until

Fault = Callable[[FaultContext, int], str]


def power(context: FaultContext, number: int) -> str:
    """Power failure of one machine, or of all at once, and restart."""
    machines = [0, 1, 2] if number % 5 in (1, 3) else [context.leading_machine()]
    context.testbed.cut(machines)
    if len(machines) == 1:
        context.kills.probe()
    context.testbed.power_on(machines)
    if len(machines) == 3:
        context.testbed.wait_healthy()
        context.kills.probe()
    for name in context.testbed.names:
        damaged = re.findall(r".*(?: is damaged|replica of .* failed).*", context.testbed.log(name))
        assert not damaged, f"{name} reports a torn tail as damage: {damaged[:3]}"
    return f"power cut of machines {machines}"


def kills(context: FaultContext, number: int) -> str:
    """Kill -9 or temporary SIGSTOP of a leading tablet server, a master, or one of each."""
    victims = context.kills.victims()
    killed = [v for v in victims if context.random.random() < 0.4]
    stopped = [v for v in victims if v not in killed]
    for name in victims:
        (context.testbed.kill if name in killed else context.testbed.pause)(name)
    context.kills.probe()
    for name in killed:
        context.testbed.start(name, wait=False)
    for name in stopped:
        context.testbed.resume(name)
    return f"kill -9 of {killed}, SIGSTOP of {stopped}"


def partition(context: FaultContext, number: int) -> str:
    """Partition of a leader's machine from others, in one of six ways."""
    testbed, machine = context.testbed, context.leading_machine()
    cut, others = testbed.hosts[machine], testbed.others(machine)
    way = PARTITIONS[number % len(PARTITIONS)]
    try:
        way(context, cut, others)
        terms = context.terms(f"tserver-{machine}") if way is _both_ways else {}
        context.kills.probe()
        if terms:
            later = context.terms(f"tserver-{machine}")
            assert later == terms, (
                f"machine {machine} is cut off and went from terms {terms} to {later}"
            )
    finally:
        heal(testbed.hosts)
    return f"machine {machine}: {(way.__doc__ or '').rstrip('.').lower()}"


def _both_ways(context: FaultContext, cut: Host, others: list[Host]) -> None:
    """Cut off in both directions."""
    cut.drop_packets_of(*others)
    for other in others:
        other.drop_packets_of(cut)


def _inbound_cut(context: FaultContext, cut: Host, others: list[Host]) -> None:
    """Its messages are delivered; it receives none."""
    cut.drop_packets_of(*others)


def _outbound_cut(context: FaultContext, cut: Host, others: list[Host]) -> None:
    """It receives messages; those that it sends are lost."""
    for other in others:
        other.drop_packets_of(cut)


def _partial_cut(context: FaultContext, cut: Host, others: list[Host]) -> None:
    """It is connected with one machine only, which is connected with all."""
    far = context.random.choice(others)
    cut.drop_packets_of(far)
    far.drop_packets_of(cut)


def _repeated_cut(context: FaultContext, cut: Host, others: list[Host]) -> None:
    """Cut off and connected again, repeatedly."""
    for _ in range(6):
        _both_ways(context, cut, others)
        context.wait(context.random.uniform(0.1, 0.8))
        heal(context.testbed.hosts)
        context.wait(context.random.uniform(0.1, 0.8))


def _all_cut(context: FaultContext, cut: Host, others: list[Host]) -> None:
    """All machines are cut off from each other: no write is acknowledged."""
    for host in context.testbed.hosts:
        host.drop_packets_of(*(h for h in context.testbed.hosts if h is not host))
    seen = [-1, context.workload.acknowledged]
    while seen[-1] != seen[-2]:  # operations in flight may still end
        assert len(seen) < 20, f"operations are acknowledged without a majority: {seen}"
        context.wait(2.0)
        seen.append(context.workload.acknowledged)
    heal(context.testbed.hosts)


PARTITIONS = (_both_ways, _inbound_cut, _outbound_cut, _partial_cut, _repeated_cut, _all_cut)

FAILED = "failed for good"
"""Text in a server's log after a disk error of its write-ahead log."""


def disk(context: FaultContext, number: int) -> str:
    """The syncs or writes of one server fail, or are slow."""
    role, calls, what = DISKS[number % len(DISKS)]
    machine = context.leading_machine()
    name = context.testbed.leader_master() if role == "master" else f"tserver-{machine}"
    first, seen = context.random.randrange(1, 30), context.testbed.log(name).count(FAILED)
    with injected(context.testbed.pid(name), calls, what.format(first=first)):
        if "delay" in what:
            context.wait_for_operations(100)
            context.kills.probe()
            return f"{name}: slow {calls}"

        if role == "master":  # a write: an idle master does not sync; leadership changes meanwhile
            with context.testbed.connect() as client:
                create(client, f"made-{number}", buckets=1)
        _wait_for_report(context, name, seen)
        context.kills.probe()
    assert context.testbed.running(name), f"{name} ended"
    context.testbed.kill(name)  # the state of its disk is unknown; only a restart repairs it
    context.testbed.start(name, wait=False)
    return f"{name}: {calls} fail"


def _wait_for_report(context: FaultContext, name: str, seen: int) -> None:
    """Wait until the server reports the error in its log and in its status."""
    wait_until(lambda: context.testbed.log(name).count(FAILED) > seen, f"{name} logs the error", 60)
    address = context.testbed.address(name)
    wait_until(
        lambda: any(address in p and "FAILED" in p and "rror" in p for p in ksck(context.testbed).problems),
        f"ksck names {name} with the error", 60, poll_s=0.2,
    )  # fmt: skip


DISKS = (
    ("tserver", SYNCS, "error=EIO:when={first}+"),
    ("tserver", WRITES, "error=EIO:when={first}+"),
    ("tserver", SYNCS, "delay_enter=200000"),
    ("master", "fdatasync", "error=EIO:when=1+"),
    ("tserver", SYNCS, "error=EIO:when={first}"),
)
"""Role of the server, system calls, and their strace action. The last one fails once only.

The log syncs with fdatasync; fsync is used for the clock's ceiling and for whole files. A server that
cannot make its clock's ceiling durable drops the messages of others, so that its log may have no work.
"""

KINDS: dict[str, Fault] = {"power": power, "kills": kills, "partition": partition, "disk": disk}
