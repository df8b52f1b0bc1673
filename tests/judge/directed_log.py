"""The log alone, with large entries: power fails while it writes, and the recovered entries are compared.

Every recovered entry equals the written one byte for byte, and no durable entry is missing. Torn writes end
inside of payloads here; the groups of the other runs write so little that most of it is headers.
"""

import random
from dataclasses import dataclass, field

from nyala.common.ids import OpId
from nyala.env.env import Env
from nyala.env.rpc import Handlers
from nyala.raft.messages import Entry, EntryKind, HardState
from nyala.replica.state_machine import Transport
from tests.sim.systems.stores import WalLog
from tests.sim.world.loop import SimLoop, seeded
from tests.sim.world.network import SimNetwork
from tests.sim.world.process import SimProcess

RESTARTS = 60
SEGMENT_BYTES = 64 << 10
LARGEST_BYTES = 3000


@dataclass(slots=True)
class _Written:
    """Entries given to the log over all restarts, and the index up to which it reported them durable."""

    entries: dict[OpId, Entry] = field(default_factory=dict)
    durable: int = 0
    term: int = 0

    def compare(self, hard: HardState, found: list[Entry]) -> None:
        for index, entry in enumerate(found, 1):
            assert entry.id.index == index, f"{entry.id} is at index {index}"
            assert entry == self.entries.get(entry.id), f"{entry.id} was never written so"
        assert len(found) >= self.durable, f"{len(found)} entries of {self.durable} came back"
        assert hard.term <= self.term, f"term {hard.term} was never written"


class _LogServer:
    """One incarnation of a process that only writes its log."""

    def __init__(self, env: Env, written: _Written, rng: random.Random) -> None:
        self._env = env
        self._written = written
        self._rng = rng

    def handlers(self) -> Handlers:
        return {}

    async def start(self) -> None:
        log = WalLog(SEGMENT_BYTES)
        self._env.files.make_dir("/core")
        hard, found = await log.open(self._env, "1" * 32)
        self._written.compare(hard, found)
        self._written.term += 1
        self._env.tasks.spawn(self._write(log, len(found)), "writes")

    async def close(self) -> None:
        await self._env.tasks.close()

    async def _write(self, log: WalLog, last: int) -> None:
        written, rng = self._written, self._rng
        hard: HardState | None = HardState(written.term)
        while True:
            entries = []
            for _ in range(rng.randrange(1, 4)):
                last += 1
                payload = rng.randbytes(rng.randrange(LARGEST_BYTES))
                entry = Entry(OpId(written.term, last), last, EntryKind.OPERATION, payload)
                written.entries[entry.id] = entry
                entries.append(entry)
            log.append(hard, entries, lambda upto=last: self._durable(upto))  # type: ignore[misc]
            hard = None
            await self._env.tasks.sleep_ms(rng.random())

    def _durable(self, upto: int) -> None:
        self._written.durable = max(self._written.durable, upto)


async def torn_writes(loop: SimLoop, seed: int = 1) -> None:
    """A process writes its log, and its machine loses power, repeatedly."""
    rng = seeded(seed, "tails")
    written = _Written()

    def program(env: Env, _: Transport) -> _LogServer:
        return _LogServer(env, written, rng)

    network = SimNetwork(loop, seeded(seed, "network"))
    process = SimProcess(loop, network, seed, "log", "log:7", "log:9", program)
    for _ in range(RESTARTS):
        await process.start()
        await loop.delay(rng.uniform(1, 20) * 1000)
        if process.alive and rng.random() < 0.6:
            process.disk.die_after(1 + rng.randrange(6))
            while process.alive:
                await loop.delay(100)
            process.power_cut()
        process.kill(power_cut=True)
    assert written.durable > RESTARTS, "too few entries were written"
