"""Random runs of a group of cores."""

from collections import Counter

from nyala.common.errors import NyalaError
from nyala.common.ids import ServerUuid
from nyala.raft.membership import Configuration, Member
from nyala.raft.options import RaftOptions
from nyala.raft.reconfiguration.changes import Change, ChangeKind
from tests.salt import generator
from tests.unit.raft.support.raft_harness import Cluster

STEPS = 2200
SHAPES = [
    ("123", "", ""), ("12345", "", ""), ("123", "4", ""), ("123", "", "3"), ("1234", "", ""), ("1", "", ""),
]  # fmt: skip


class RandomRun:
    """One run."""

    def __init__(self, seed: int) -> None:
        self.rng = generator(seed)
        voters, nonvoters, witnesses = SHAPES[seed % len(SHAPES)]
        draw = generator(seed + 1)
        self.cluster = Cluster(
            voters, nonvoters=nonvoters, witnesses=witnesses, spares="89",
            options=RaftOptions(max_append_bytes=200, inflight_bytes=500, cache_bytes=300),
            random=lambda _: draw.randrange,
        )  # fmt: skip
        self.names = list(self.cluster.servers)
        self.seen: Counter[str] = Counter()
        self.outside: set[str] = set()
        self.reads: dict[
            tuple[str, int, int], int
        ] = {}  # (server, incarnation, round) -> index it must reach
        self.incarnations: Counter[str] = Counter()
        self.number = 0

    def run(self) -> None:
        actions = {
            self.deliver: 60, self.tick: 22, self.sync: 14, self.propose: 10, self.read: 4, self.hold: 4,
            self.lose: 3, self.crash: 2, self.restart: 8, self.cut: 1, self.transfer: 2, self.flush: 1,
            self.change: 2, self.copy: 1,
        }  # fmt: skip
        names, weights = list(actions), list(actions.values())
        for step in range(STEPS):
            self.rng.choices(names, weights)[0]()
            self.check_reads()
            if step % 16 == 0:
                self.cluster.check_all()

    # ---- random steps ---------------------------------------------------------------------------

    def random_server(self) -> str | None:
        alive = [s.uuid for s in self.cluster.alive]
        return self.rng.choice(alive) if alive else None

    def deliver(self) -> None:
        network = self.cluster.network
        if not network:
            return
        position = self.rng.choice([0, 0, 0, self.rng.randrange(len(network))])
        self.seen["late"] += position > 0
        message = network.pop(position)
        if (message.sender in self.outside) != (message.to in self.outside):
            self.seen["lost"] += 1
            return
        if self.rng.random() < 0.05:
            self.seen["doubled"] += 1
            network.insert(self.rng.randrange(len(network) + 1), message)
        self.cluster.deliver(message)

    def lose(self) -> None:
        if self.cluster.network:
            self.seen["lost"] += 1
            self.cluster.network.pop(self.rng.randrange(len(self.cluster.network)))

    def tick(self) -> None:
        for server in self.cluster.alive:
            if self.rng.random() < 0.9:
                self.cluster.tick(server.uuid)

    def sync(self) -> None:
        if name := self.random_server():
            server = self.cluster.servers[name]
            if server.disk.pending:
                self.cluster.sync_one(server)
                self.cluster.work(server)

    def hold(self) -> None:
        if name := self.random_server():
            disk = self.cluster.servers[name].disk
            disk.held = not disk.held
            self.seen["held"] += disk.held
            self.cluster.sync(name)

    def propose(self) -> None:
        for server in self.cluster.alive:
            if server.node.is_leader:
                for _ in range(self.rng.randrange(1, 4)):
                    self.number += 1
                    self.cluster.propose(server.uuid, f"op{self.number}")
                if self.rng.random() < 0.7:
                    self.cluster.work(server)

    def read(self) -> None:
        for server in self.cluster.alive:
            if (number := self.cluster.read(server.uuid)) is not None:
                key = (server.uuid, self.incarnations[server.uuid], number)
                self.reads[key] = max(self.cluster.committed, default=0)
                self.cluster.work(server)

    def check_reads(self) -> None:
        for server in self.cluster.alive:
            for answer in server.confirmed:
                for key in [k for k in self.reads if k[0] == server.uuid]:
                    if key[1] == self.incarnations[server.uuid] and key[2] <= answer.round:
                        least = self.reads.pop(key)
                        assert answer.index >= least, f"stale read: {answer} after {least}"
                        self.seen["read"] += 1
            server.confirmed.clear()

    def crash(self) -> None:
        if name := self.random_server():
            pending = len(self.cluster.servers[name].disk.pending)
            keep = self.rng.randrange(pending + 1)
            self.seen["crash"] += 1
            self.seen["torn"] += pending > keep
            self.cluster.crash(name, keep)
            self.incarnations[name] += 1

    def restart(self) -> None:
        for server in self.cluster.servers.values():
            if not server.alive and self.rng.random() < 0.7:
                self.cluster.restart(server.uuid)

    def cut(self) -> None:
        self.outside = {n for n in self.names if self.rng.random() < 0.4}
        self.seen["partition"] += bool(self.outside)

    def transfer(self) -> None:
        for server in self.cluster.alive:
            if server.node.is_leader:
                try:
                    server.node.transfer(ServerUuid(self.rng.choice(self.names)))
                    self.seen["transfer"] += 1
                except NyalaError:
                    self.seen["transfer refused"] += 1

    def change(self) -> None:
        for server in self.cluster.alive:
            if server.node.is_leader:
                edit = self.edit(server.node.status().config)
                try:
                    self.cluster.change(server.uuid, edit)
                    self.seen["change"] += 1
                except NyalaError as err:
                    self.seen[f"change refused: {err.code}"] += 1

    def edit(self, config: Configuration) -> Change:
        uuid = ServerUuid(self.rng.choice(self.names))
        voter = self.rng.random() < 0.5
        electable, promote = self.rng.random() < 0.8, not voter and self.rng.random() < 0.5
        member = Member(uuid, uuid, voter=voter, promote=promote, electable=electable)
        if config.get(uuid) is None:
            return Change(ChangeKind.ADD, member)
        many = len(config.members) > 3 or self.rng.random() < 0.2
        return Change(ChangeKind.REMOVE if many else ChangeKind.MODIFY, member)

    def copy(self) -> None:
        """A server outside of all configurations in use loses its log, and starts with another's files."""
        cores = {s.uuid: s.node.core for s in self.cluster.servers.values()}
        newest = max(cores.values(), key=lambda core: core.configs.committed.id).configs.committed
        used = [
            newest,
            *(c.configs.active for c in cores.values() if c.configs.active.id > newest.id),
        ]
        sources = [
            uuid for uuid in (s.uuid for s in self.cluster.alive)
            if cores[uuid].configs.committed == newest and cores[uuid].log.applied >= newest.id.index
        ]  # fmt: skip
        unused = [s.uuid for s in self.cluster.alive if not any(c.get(s.uuid) for c in used)]
        if sources and unused:
            self.seen["copy"] += 1
            name = self.rng.choice(unused)
            self.cluster.copy(name, self.rng.choice(sources))
            self.incarnations[name] += 1

    def flush(self) -> None:
        if name := self.random_server():
            self.cluster.flush(name)

    # ---- end of a run ----------------------------------------------------------------------------

    def heal(self) -> None:
        cluster = self.cluster
        self.outside = set()
        for server in cluster.servers.values():
            if not server.alive:
                cluster.restart(server.uuid)
            server.disk.held = False
            cluster.sync(server.uuid)
        done = None
        for _ in range(400):
            for name in self.names:
                cluster.tick(name)
            cluster.settle()
            leader = next((s for s in cluster.alive if s.node.status().accepting), None)
            if leader is None:
                continue
            config = leader.node.status().config
            members = [cluster.servers[m.uuid] for m in config.members]
            if done is None:
                done = cluster.propose(leader.uuid, "at last")
            elif not config.promoting and all(
                s.node.status().applied >= done.index for s in members
            ):
                break
        else:
            raise AssertionError([s.node.status() for s in cluster.alive])
        cluster.check_all()
        assert {s.node.last for s in members} == {leader.node.last}
        assert {s.node.status().config.id for s in members} == {config.id}
        assert leader.node.core.log.holds(done)
