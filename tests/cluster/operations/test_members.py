"""Membership changes of real groups by commands under writes: moves, removals, additions, with kills.

Chains of rows (linked_list.py) are written to the tablet whose members change; they are
verified in the middle and at the end, and a write that fails ends the test.
"""

import os
import subprocess
import sys
from contextlib import contextmanager

import pytest

from nyala.client.connection import Connection
from nyala.client.core import ClientOptions
from nyala.operate.membership import Membership
from nyala.testing import MiniCluster
from tests.cluster.support import leading, linked_list
from tests.cluster.support.ksck import wait_equal, wait_ksck
from tests.cluster.support.linked_list import LinkedList
from tests.waiting import wait_until

pytestmark = pytest.mark.full

MOVES = 20
FILLED = 60_000
RATE_BYTES = 500_000
WAIT_FOR_COPY = "wait for the copy from "


@pytest.fixture(scope="module")
def four():
    """Four tablet servers; a copy of a filled table takes seconds, of a small one none."""
    options = {
        "copy_rate_bytes": str(RATE_BYTES),
        "copy_retry_ms": "2000",
        "flush_bytes": "1000000",
        "repair": "off",  # else the masters add a member that a command has removed
        "client_result_ttl_s": "60",
    }
    with MiniCluster(tservers=4, options=options) as made:
        yield made


class Operator:
    """Commands that change the members of one table's only tablet."""

    def __init__(self, cluster, connection, table, chains):
        self.cluster, self.connection, self.table = cluster, connection, table
        self.chains = chains
        (self.tablet,) = leading.leaders(cluster, table)
        self.names = {cluster.address(n): n for n in cluster.names if n.startswith("tserver")}

    @property
    def leader(self):
        return leading.leader(self.cluster, self.table)

    def holders(self):
        """The servers that the masters name, the leader first."""
        with self.cluster.connect() as client:
            place = client.table(self.table).tablets()[0]
        leader = self.cluster.address(self.leader)
        found = sorted((a for _, a in place.replicas), key=lambda a: a != leader)
        return [self.names[a] for a in found]

    def empty_servers(self):
        members = self.members()
        return next(n for n in self.names.values() if n not in members)

    def led(self):
        """Status of the group, if its leader answers."""
        group = self.connection.run(Membership(self.connection.core, self.tablet).view())
        return group if group.leader else None

    def members(self):
        """Return the members in the leader's status, the leader first."""
        group = wait_until(self.led, "the leader answers")
        found = [group.servers[m.uuid] for m in group.config.members]
        return [self.names[s.address] for s in sorted(found, key=lambda s: s != group.leader)]

    def until_tombstone(self, name):
        """Return whether a server reports only a tombstone."""
        membership = Membership(self.connection.core, self.tablet)
        address = self.cluster.address(name)

        seen = []

        def is_tombstone():
            group = self.connection.run(membership.view())
            seen.append(next(group.of(s) for s in group.servers.values() if s.address == address))
            return seen[-1].state == "TOMBSTONED"

        try:
            wait_until(is_tombstone, f"a tombstone on {name}", poll_s=0.2)
        except AssertionError as late:
            raise AssertionError(f"{late}; last output: {seen[-1]}") from None

    def do(self, command, *servers, notify=lambda _: None):
        """Run one command to its end; return its steps."""
        membership = Membership(self.connection.core, self.tablet, notify)
        work = getattr(membership, command)
        self.connection.run(work(*(self.cluster.address(s) for s in servers)))
        return membership.done

    def until_looked_up(self, *members):
        """Wait until look-ups at the masters return exactly these servers."""
        wait_until(lambda: sorted(self.holders()) == sorted(members), f"the masters name {members}")

    def begin(self, *words):
        """Start a command as a process of its own."""
        environ = {**os.environ, "NYALA_MASTERS": self.cluster.masters}
        program = [sys.executable, "-m", "nyala.cli.main", "tablet", "change_config", *words]
        return subprocess.Popen(
            program, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environ, text=True
        )


def until_copying(command):
    """Read the output of a command until it waits for a copy."""
    messages = []
    for line in command.stdout:
        messages.append(line)
        if line.startswith(WAIT_FOR_COPY):
            return
    raise AssertionError("".join(messages))


@contextmanager
def operating(cluster, name, filled=0):
    """A table of one tablet, in which chains grow; at the end they are verified and all replicas compared."""
    with cluster.connect() as client:
        linked_list.fill(linked_list.create(client, name), filled)
        wait_ksck(cluster)  # a replica that was never created leaves no tombstone
        connection = Connection(cluster.masters, ClientOptions(timeout_ms=60_000))
        try:
            with LinkedList(cluster.connect, name, 3) as chains:
                yield Operator(cluster, connection, name, chains)
                chains.until_acknowledged(44)
            assert chains.verify() > filled + 40
            assert chains.acknowledged == client.table(name).count() - filled
            wait_equal(cluster)
        finally:
            connection.close()
            client.drop_table(name)  # an incomplete change would fail later tests


@pytest.mark.row("S1.28", "S1.2")
def test_twenty_moves_under_load_fail_no_write(four):
    with operating(four, "moved") as operator:
        for turn in range(MOVES):
            members, new = operator.members(), operator.empty_servers()
            old = members[turn % len(members)]
            operator.do("move", old, new)
            assert sorted(operator.members()) == sorted({*members, new} - {old})
            operator.until_tombstone(old)
            if turn % 5 == 4:
                operator.chains.verify()
        operator.until_looked_up(new, *(n for n in members if n != old))


@pytest.mark.row("S1.2", "S1.22")
def test_group_shrinks_to_one_and_grows_again_while_servers_are_killed(four):
    with operating(four, "shrunk") as operator:
        first, second, last = operator.holders()
        operator.do("remove", first)
        four.kill(first)
        four.start(first, wait=False)
        operator.do("remove", second)
        operator.until_looked_up(last)
        operator.chains.verify()
        four.kill(last)
        four.start(last)
        four.kill(second)  # the next copy finds the tombstone
        four.start(second)
        operator.do("add", second)
        four.kill(second)
        four.start(second, wait=False)
        operator.do("add", first)
        operator.until_looked_up(first, second, last)


@pytest.mark.row("S1.9", "S1.28")
def test_killed_command_and_killed_source_are_resumed(four):
    with operating(four, "cut", FILLED) as operator:
        old, new = operator.leader, operator.empty_servers()
        with operator.begin(
            "move_replica", operator.tablet, four.address(old), four.address(new)
        ) as command:
            until_copying(command)
            command.kill()
        messages: list[str] = []
        killed: list[str] = []

        def notify(words):
            messages.append(words.split()[0])
            if words.startswith(WAIT_FOR_COPY) and not killed:
                killed.append(operator.names[words.split()[5]])  # the leader, which rarely changes
                four.kill(killed[0])

        operator.do("move", old, new, notify=notify)
        assert killed, "the copy was over before its source could be killed"
        assert "copy" in messages, "the copy from the killed source begins again"
        assert "remove" in messages
        operator.chains.verify()
        operator.until_looked_up(*(n for n in operator.names.values() if n != old))
        four.start(killed[0])
        operator.do("remove", old)
        operator.until_tombstone(old)
        assert operator.do("remove", old) == []
