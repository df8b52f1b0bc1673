"""Runs the scenarios in tests/scenarios/raft: commands, then `----`, then the transcript.

Only protocol facts are in a transcript: role changes, writes, messages as they leave, commits, answers.
A line `quiet COMMAND` writes nothing. NYALA_REWRITE=1 writes what happened into the files; read the diff.

    nodes 1 2 3 [nonvoter=4] [witness=3] [spare=5] [cache=BYTES] [append=BYTES] [inflight=BYTES]
    elect N            N times out, wins, and a heartbeat goes round
    tick N [TICKS]     time passes for N         timeout N    ... until its election timeout
    heartbeat N        time passes until N, a leader, sends heartbeats (not delivered)
    propose N TEXT...  transfer N TO             read N
    deliver [A->B]     messages in flight, once  settle [A->B ...]   until no message is in flight
    drop [A->B]        lose messages in flight   duplicate A->B      reverse A->B
    hold N             N's disk takes writes, and syncs only at `sync N`; `unhold N`
    crash N [KEEP]     restart N                 flush N      files hold applied entries
    change N [if=OP] +4'p -3 =2w   N, a leader, adds (' non-voter, w witness, p to be promoted, r to be
                       replaced), removes, or changes members, all at once
    unsafe_config N [term=T] A B...   N, a survivor, makes A, B ... the only members
    copy N M           N restarts with the files of M
    collect N INDEX    N's log can no longer be read up to INDEX
    cut A B ...        these cannot reach the others (what is sent there is lost); `heal`
    clock N STAMP      N's hybrid clock jumps forward
    inject A->B KIND FIELD=VALUE ...             a message made by hand
    status [N ...]     log N      config N       one line each
"""

from pathlib import Path

from nyala.common.errors import NyalaError
from nyala.common.ids import ServerUuid
from nyala.raft.messages import AnyMessage
from nyala.raft.options import RaftOptions
from nyala.raft.ready import Ready
from tests.scenarios import scenario_file
from tests.scenarios.raft_text import (
    change_of,
    describe,
    entries_text,
    entry_text,
    members_text,
    message_of,
    op_of,
)
from tests.unit.raft.support.raft_harness import Cluster


class Scenario:
    """One scenario while it runs."""

    def __init__(self) -> None:
        self.cluster: Cluster
        self.lines: list[str] = []
        self.roles: dict[str, tuple[str, int]] = {}
        self.commits: dict[str, int] = {}
        self.outside: set[str] = set()
        self.seen = 0

    # ---- transcript ----------------------------------------------------------------------------

    def watch(self, uuid: str, ready: Ready) -> None:
        say = self.lines.append
        self.notice(uuid)
        if ready.config is not None:
            say(f"{uuid} makes config({members_text(ready.config)}) of {ready.config.id} active")
        if ready.persist is not None:
            say(f"{uuid} writes term {ready.persist.term}, vote {ready.persist.vote or 'none'}")
        if ready.append:
            say(f"{uuid} writes [{entries_text(ready.append)}]")
        for request in ready.read:
            say(f"{uuid} reads its log from {request.first_index} for {request.peer}")
        if ready.apply:
            say(f"{uuid} applies [{entries_text(ready.apply)}]")
        if ready.config_committed is not None:
            say(f"{uuid} has config({members_text(ready.config_committed)}) committed")
        if ready.confirmed is not None:
            say(f"{uuid} confirms read round {ready.confirmed.round} at {ready.confirmed.index}")

    def notice(self, uuid: str) -> None:
        """Record a role change."""
        core = self.cluster[uuid].core
        now = (core.state.value, core.term)
        if now != self.roles.get(uuid, ("follower", 0)):
            self.lines.append(f"{uuid} becomes {now[0]} in term {now[1]}")
        self.roles[uuid] = now

    def leave(self) -> None:
        """Record the messages sent since the last call, and lose those of partitioned members."""
        fresh = self.cluster.network[self.seen :]
        kept = []
        for message in fresh:
            lost = (message.sender in self.outside) != (message.to in self.outside)
            self.lines.append(describe(message) + (" (lost)" if lost else ""))
            if not lost:
                kept.append(message)
        self.cluster.network[self.seen :] = kept
        self.seen = len(self.cluster.network)

    # ---- commands --------------------------------------------------------------------------------

    def run(self, line: str) -> list[str]:
        """Run one command; return its transcript."""
        words = line.split()
        quiet = words[0] == "quiet"
        name, *args = words[1:] if quiet else words
        self.lines = []
        getattr(self, f"do_{name}")(*args)
        if name != "nodes":
            for server in self.cluster.alive:
                self.notice(server.uuid)
            self.leave()
            self.cluster.check_all()
        return [] if quiet else self.lines

    def do_nodes(self, *args: str) -> None:
        named = dict(a.split("=") for a in args if "=" in a)
        self.cluster = Cluster(
            [a for a in args if "=" not in a],
            nonvoters=filter(None, named.get("nonvoter", "").split(",")),
            witnesses=filter(None, named.get("witness", "").split(",")),
            spares=filter(None, named.get("spare", "").split(",")),
            options=RaftOptions(
                max_append_bytes=int(named.get("append", 1 << 20)),
                inflight_bytes=int(named.get("inflight", 8 << 20)),
                cache_bytes=int(named.get("cache", 16 << 20)),
            ),
            watch=self.watch,
        )

    def do_elect(self, uuid: str) -> None:
        cluster = self.cluster
        for other in cluster.alive:  # no member has a recent leader
            other.node.core.ticks_since_leader = cluster.options.election_ticks
        for _ in range(4):
            if not cluster[uuid].is_leader:
                self.do_timeout(uuid)
                self.do_settle()
        assert cluster[uuid].is_leader, f"{uuid} was not elected: {cluster[uuid].status()}"
        self.do_heartbeat(uuid)
        self.do_settle()

    def do_tick(self, uuid: str, ticks: str = "1") -> None:
        for _ in range(int(ticks)):
            self.cluster.tick(uuid)
            self.leave()

    def do_timeout(self, uuid: str) -> None:
        core = self.cluster[uuid].core
        self.do_tick(uuid, str(core.timeout - core.elapsed))

    def do_heartbeat(self, uuid: str) -> None:
        lead = self.cluster[uuid].core.leadership
        assert lead is not None, f"{uuid} does not lead"
        self.do_tick(uuid, str(self.cluster.options.heartbeat_ticks - lead.heartbeat_elapsed))

    def do_propose(self, uuid: str, *texts: str) -> None:
        for text in texts:
            if self.cluster.propose(uuid, text) is None:
                self.lines.append(f"{uuid} cannot take {text}: it does not lead, or hands over")
        self.cluster.work(self.cluster.servers[uuid])

    def do_read(self, uuid: str, count: str = "1") -> None:
        for _ in range(int(count)):
            number = self.cluster.read(uuid)
            text = f"read joins round {number}" if number else "cannot read: it does not lead"
            self.lines.append(f"{uuid} {text}")
        self.cluster.work(self.cluster.servers[uuid])

    def do_change(self, uuid: str, *texts: str) -> None:
        expected = next((op_of(t[3:]) for t in texts if t.startswith("if=")), None)
        changes = [change_of(t) for t in texts if not t.startswith("if=")]
        try:
            self.cluster.change(uuid, *changes, expected=expected)
        except NyalaError as err:
            why = ", ".join(f"{k} {v}" for k, v in err.details.items())
            self.lines.append(f"{uuid} refuses: {err.code}" + (f" ({why})" if why else ""))

    def do_unsafe_config(self, uuid: str, *texts: str) -> None:
        term = next((int(t[5:]) for t in texts if t.startswith("term=")), 0)
        keep = [ServerUuid(t) for t in texts if not t.startswith("term=")]
        try:
            self.cluster.unsafe_config(uuid, keep, term)
        except NyalaError as err:
            self.lines.append(f"{uuid} refuses: {err.code}")

    def do_copy(self, uuid: str, source: str) -> None:
        self.cluster.copy(uuid, source)
        self.roles[uuid] = ("follower", self.cluster[uuid].term)

    def do_transfer(self, uuid: str, to: str) -> None:
        try:
            self.cluster[uuid].transfer(ServerUuid(to))
        except NyalaError as err:
            self.lines.append(f"{uuid} refuses: {err.code}")
        self.cluster.work(self.cluster.servers[uuid])

    def _take(self, routes: tuple[str, ...]) -> list[AnyMessage]:
        def wanted(message: AnyMessage) -> bool:
            return not routes or f"{message.sender}->{message.to}" in routes

        taken = [m for m in self.cluster.network if wanted(m)]
        self.cluster.network[:] = [m for m in self.cluster.network if not wanted(m)]
        self.seen = len(self.cluster.network)
        return taken

    def do_deliver(self, *routes: str) -> None:
        for message in self._take(routes):
            try:
                self.cluster.deliver(message)
            except NyalaError as err:
                self.lines.append(f"{message.to} drops {type(message).__name__}: {err.code}")
            self.leave()

    def do_settle(self, *routes: str) -> None:
        for server in self.cluster.alive:
            self.cluster.work(server)
        self.leave()
        for _ in range(100):
            before = len(self.cluster.network)
            self.do_deliver(*routes)
            if len(self.cluster.network) == before == 0 or not self._any(routes):
                return
        raise AssertionError("messages never end")

    def _any(self, routes: tuple[str, ...]) -> bool:
        return any(not routes or f"{m.sender}->{m.to}" in routes for m in self.cluster.network)

    def do_drop(self, *routes: str) -> None:
        self._take(routes)

    def do_duplicate(self, *routes: str) -> None:
        taken = self._take(routes)
        self.cluster.network.extend(taken + taken)
        self.seen = len(self.cluster.network)

    def do_reverse(self, *routes: str) -> None:
        self.cluster.network.extend(reversed(self._take(routes)))
        self.seen = len(self.cluster.network)

    def do_hold(self, uuid: str) -> None:
        self.cluster.servers[uuid].disk.held = True

    def do_unhold(self, uuid: str) -> None:
        self.cluster.servers[uuid].disk.held = False
        self.do_sync(uuid)

    def do_sync(self, uuid: str) -> None:
        self.lines.append(f"{uuid} syncs")
        self.cluster.sync(uuid)

    def do_crash(self, uuid: str, keep: str = "0") -> None:
        self.cluster.crash(uuid, int(keep))

    def do_restart(self, uuid: str) -> None:
        self.cluster.restart(uuid)
        self.roles[uuid] = ("follower", self.cluster[uuid].term)

    def do_flush(self, uuid: str) -> None:
        self.cluster.flush(uuid)

    def do_collect(self, uuid: str, index: str) -> None:
        self.cluster.servers[uuid].disk.collected = int(index)

    def do_cut(self, *uuids: str) -> None:
        self.outside = set(uuids)

    def do_heal(self) -> None:
        self.outside = set()

    def do_clock(self, uuid: str, stamp: str) -> None:
        self.cluster.servers[uuid].clock = int(stamp)

    def do_inject(self, route: str, kind: str, *fields: str) -> None:
        self.cluster.network.append(message_of(route, kind, fields))

    def do_status(self, *uuids: str) -> None:
        for server in self.cluster.alive:
            if not uuids or server.uuid in uuids:
                s = server.node.status()
                led = f"led by {s.leader}" if s.leader else "no leader"
                tail = f"last {s.last}, durable {s.durable}, commit {s.commit}, applied {s.applied}"
                tail += f", closed {s.closed}" if s.closed else ""
                self.lines.append(f"{s.uuid} {s.role} in term {s.term}, {led}: {tail}")
                behind = [p.uuid for p in s.peers if p.needs_copy]
                if behind:
                    self.lines.append(f"  needs a copy: {' '.join(behind)}")

    def do_config(self, uuid: str) -> None:
        s = self.cluster[uuid].status()
        active, committed = s.config, s.committed_config
        self.lines.append(
            f"{uuid}: active config({members_text(active)}) of {active.id}, "
            f"committed config({members_text(committed)}) of {committed.id}"
        )

    def do_log(self, uuid: str) -> None:
        log = self.cluster[uuid].core.log
        cached = log.slice(log.first_cached, 1 << 62) or ()
        before = f"({log.first_cached - 1} not in memory) " if log.first_cached > 1 else ""
        self.lines.append(f"{uuid}: {before}{', '.join(map(entry_text, cached))}")


def run_file(path: Path) -> None:
    """Run one scenario, and compare (or, with NYALA_REWRITE=1, replace) its transcript.

    Raises:
        AssertionError: the transcript differs.
    """
    scenario_file.run(path, Scenario().run)
