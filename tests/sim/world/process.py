"""One simulated process: its environment, its disk that outlives it, and how it dies.

A `Program` builds a server from an `Env`; the process starts it, binds its handlers, and can be
killed (with or without its machine's power), paused, resumed and started again on the same disk.
"""

import asyncio
import contextvars
import errno
import traceback
from collections.abc import Callable
from typing import Any, Protocol

from nyala.common.errors import NyalaError
from nyala.env.env import Env
from nyala.env.rpc import Handlers
from nyala.replica.state_machine import Transport
from tests.sim.world.files import SimDisk
from tests.sim.world.loop import LIFE, Life, SimLoop, seeded
from tests.sim.world.network import Endpoint, SimNetwork
from tests.sim.world.rpc import SimRpc
from tests.sim.world.tasks import LaneDelays, SimClock, SimTasks
from tests.sim.world.transport import SimTransport

START_AGAIN_US = 2_000_000
"""Time after which a process that refused to start is started again, in microseconds."""


class Server(Protocol):
    """Server that a program makes: a real one by shape."""

    async def start(self) -> None:
        """Recover and begin to serve."""
        ...

    def handlers(self) -> Handlers:
        """Return the handlers of its public port."""
        ...

    async def close(self) -> None:
        """Stop in order."""
        ...


Program = Callable[[Env, Transport], Server]


class SimProcess:
    """A process and its machine.

    Args:
        loop: virtual time.
        network: its only way to others.
        seed: of the simulation; the process draws from generators of its own.
        name: unique, for example `tserver-1`.
        address: public address.
        peer_address: of the peer port.
        program: makes the server; None for a client.
    """

    def __init__(
        self,
        loop: SimLoop,
        network: SimNetwork,
        seed: int,
        name: str,
        address: str = "",
        peer_address: str = "",
        program: Program | None = None,
    ) -> None:
        self.loop = loop
        self.network = network
        self.seed = seed
        self.name = name
        self.address = address
        self.peer_address = peer_address
        self.program = program
        self.disk = SimDisk(seeded(seed, name, "disk"), loop.trace, name)
        self.disk.on_death = self._died
        self.disk.on_sync = self._touched
        self.disk.on_operation = self._operated
        self._stalled_until_s = 0.0
        self.delays = LaneDelays()
        self.clock = SimClock(loop)
        self.lives = 0
        self.life: Life | None = None
        self.env: Env | None = None
        self.tasks: SimTasks
        self.server: Any = None
        self.started: asyncio.Future[None] | None = None
        self.failures: list[BaseException] = []

    def _touched(self) -> None:
        self.network.touched[self.name] = None

    @property
    def alive(self) -> bool:
        """True if it runs (paused or not)."""
        return self.life is not None and not self.life.dead

    def open(self) -> Env:
        """Begin a life and return its environment; `start` does so and runs the program."""
        assert not self.alive, f"{self.name} runs already"
        self.lives += 1
        life = self.life = Life(self.name)
        self.started = None
        life.failures = self.failures
        self.loop.trace.note("start", f"{self.name} {self.lives}")
        rng = seeded(self.seed, self.name, self.lives)
        tasks = SimTasks(self.loop, seeded(self.seed, self.name, self.lives, "lanes"), self.delays)
        self.tasks = tasks
        rpc = SimRpc(self.network, self.name, life)
        self.env = Env(self.clock, rng, self.disk.mount(), tasks, rpc)
        return self.env

    def start(self) -> asyncio.Future[None]:
        """Start the program; the future is done when its server has started, or has failed to."""
        assert self.program is not None, f"{self.name} has no program"
        env = self.open()
        assert self.life is not None
        started = self.started = self.loop.create_future()
        self.life.inside(self.loop.create_task, self._boot(env, started))
        return started

    async def _boot(self, env: Env, started: asyncio.Future[None]) -> None:
        assert self.life is not None
        assert self.program is not None
        try:
            transport = SimTransport(self.network, self.name, self.life, self.peer_address)
            self.server = self.program(env, transport)
            endpoint = Endpoint(self.name, self.life, self.server.handlers())
            self.network.bind(self.address, endpoint)
            await self.server.start()
        except Exception as err:  # a start that fails is a failure of the run, unless forgiven
            full = isinstance(err, OSError) and err.errno == errno.ENOSPC
            if full or (self.disk.lost_data and isinstance(err, NyalaError | OSError)):
                self._refused(err)
                return
            self.failures.append(err)
            started.set_exception(err)
            started.exception()
        else:
            started.set_result(None)

    def _refused(self, err: Exception) -> None:
        """A server does not start from a damaged or full disk: it ends, and is started again later."""
        self.loop.trace.note("start_refused", f"{self.name} {err}")
        self.network.after(0, self._end_of, self.life)

    def _end_of(self, life: Life) -> None:
        if self.life is life and not life.dead:
            self.kill(power_cut=False)
            self.network.after(START_AGAIN_US, self._again, life)

    def _again(self, life: Life) -> None:
        if self.life is life:
            self.start()

    def run(self, fn: Callable[..., Any], *args: Any) -> asyncio.Task[Any]:
        """Run an async function as this process."""
        assert self.life is not None
        return self.life.inside(self.loop.create_task, fn(*args))

    def kill(self, *, power_cut: bool = True) -> None:
        """Die at once; with the power cut, the disk loses what was not synced."""
        if not self.alive:
            return
        self._died()
        if power_cut:
            self.power_cut()
        else:
            self.loop.trace.note("kill", self.name)

    def power_cut(self) -> None:
        """Cut the power of the machine of a process that has died."""
        assert not self.alive, f"{self.name} runs"
        self.loop.trace.note("power_cut", self.name)
        self.disk.crash()

    def _died(self) -> None:
        """End this life; also called by the disk when a file operation is the last."""
        assert self.life is not None
        self.disk.kill()
        self.life.end()
        self.network.died(self.life)
        if self.started is not None and not self.started.done():
            self.started.set_exception(ProcessDiedInStart(self.name))
            self.started.exception()
        self.server = None

    def restart(self) -> asyncio.Future[None]:
        """Start again on the same disk."""
        return self.start()

    def pause(self) -> None:
        """Stand still, as in a long garbage collection or a stopped virtual machine."""
        assert self.life is not None
        self.loop.trace.note("pause", self.name)
        self.life.pause()

    def resume(self) -> None:
        """Go on; all that was due meanwhile happens now."""
        life = self.life
        if life is not None and life.held and not life.dead:
            self.loop.trace.note("resume", self.name)
            life.held = False
            if not life.stalled:
                self.network.resume(life)

    # ---- disk operations on the loop ---------------------------------------------------------------

    def _operated(self, kind: str, path: str) -> None:
        """A disk operation outside the lanes stops the whole process for as long as the disk takes."""
        life = self.life
        if life is None or LIFE.get() is not life or self.tasks.in_lane:
            return
        self.loop.trace.note("on_loop", f"{self.name} {kind} {path}")
        if self.started is not None and self.started.done():  # before that nobody is served
            stack = "".join(traceback.format_stack(limit=16)[:-3])
            self.loop.blocked.append(
                f"{self.name} waits for a disk on its loop: {kind} {path}\n{stack}"
            )
        now = self.loop.time()
        self._stalled_until_s = max(now, self._stalled_until_s) + self.tasks.disk_us() / 1e6
        if not life.stalled:
            life.stall()
            self._wake(life)

    def _wake(self, life: Life) -> None:
        context = contextvars.Context()
        self.loop.call_at(self._stalled_until_s, self._go_on, life, context=context)

    def _go_on(self, life: Life) -> None:
        if life.dead:
            return
        if self._stalled_until_s > self.loop.time():
            self._wake(life)
            return
        life.stalled = False
        if not life.held:
            self.network.resume(life)


class ProcessDiedInStart(Exception):
    """The process was killed before its server had started."""
