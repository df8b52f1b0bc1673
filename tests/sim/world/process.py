"""One simulated process: its environment, its disk, which outlives it, and its crashes.

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
from tests.sim.world.loop import INCARNATION, Incarnation, SimLoop, seeded
from tests.sim.world.network import Endpoint, SimNetwork
from tests.sim.world.rpc import SimRpc
from tests.sim.world.tasks import LaneDelays, SimClock, SimTasks
from tests.sim.world.transport import SimTransport

START_AGAIN_US = 2_000_000
"""Time after which a process that refused to start is started again, in microseconds."""


class Server(Protocol):
    """Interface of a server that a program makes."""

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
        network: connects it to others.
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
        self.starts = 0
        self.incarnation: Incarnation | None = None
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
        return self.incarnation is not None and not self.incarnation.dead

    def open(self) -> Env:
        """Begin an incarnation and return its environment; `start` does so and runs the program."""
        assert not self.alive, f"{self.name} runs already"
        self.starts += 1
        incarnation = self.incarnation = Incarnation(self.name)
        self.started = None
        incarnation.failures = self.failures
        self.loop.trace.note("start", f"{self.name} {self.starts}")
        rng = seeded(self.seed, self.name, self.starts)
        lanes = seeded(self.seed, self.name, self.starts, "lanes")
        tasks = SimTasks(self.loop, lanes, self.delays, self.clock)
        self.tasks = tasks
        rpc = SimRpc(self.network, self.name, incarnation)
        self.env = Env(self.clock, rng, self.disk.mount(), tasks, rpc)
        return self.env

    def start(self) -> asyncio.Future[None]:
        """Start the program; the future is done when its server has started, or has failed to."""
        assert self.program is not None, f"{self.name} has no program"
        env = self.open()
        assert self.incarnation is not None
        started = self.started = self.loop.create_future()
        self.incarnation.inside(self.loop.create_task, self._boot(env, started))
        return started

    async def _boot(self, env: Env, started: asyncio.Future[None]) -> None:
        assert self.incarnation is not None
        assert self.program is not None
        try:
            transport = SimTransport(self.network, self.name, self.incarnation, self.peer_address)
            self.server = self.program(env, transport)
            endpoint = Endpoint(self.name, self.incarnation, self.server.handlers())
            self.network.bind(self.address, endpoint)
            await self.server.start()
        except Exception as err:  # a failed start fails the run, unless it is allowed
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
        """Handle a start that was refused for a damaged or full disk: start again later."""
        self.loop.trace.note("start_refused", f"{self.name} {err}")
        self.network.after(0, self._end_of, self.incarnation)

    def _end_of(self, incarnation: Incarnation) -> None:
        if self.incarnation is incarnation and not incarnation.dead:
            self.kill(power_cut=False)
            self.network.after(START_AGAIN_US, self._again, incarnation)

    def _again(self, incarnation: Incarnation) -> None:
        if self.incarnation is incarnation:
            self.start()

    def run(self, fn: Callable[..., Any], *args: Any) -> asyncio.Task[Any]:
        """Run an async function as this process."""
        assert self.incarnation is not None
        return self.incarnation.inside(self.loop.create_task, fn(*args))

    def kill(self, *, power_cut: bool = True) -> None:
        """Crash at once; with `power_cut`, the disk loses unsynced data."""
        if not self.alive:
            return
        self._died()
        if power_cut:
            self.power_cut()
        else:
            self.loop.trace.note("kill", self.name)

    def power_cut(self) -> None:
        """Cut the power of the machine of a process that has ended."""
        assert not self.alive, f"{self.name} runs"
        self.loop.trace.note("power_cut", self.name)
        self.disk.crash()

    def _died(self) -> None:
        """End this incarnation; also called by the disk for a crash in a file operation."""
        assert self.incarnation is not None
        self.disk.kill()
        self.incarnation.end()
        self.network.died(self.incarnation)
        if self.started is not None and not self.started.done():
            self.started.set_exception(ProcessDiedInStart(self.name))
            self.started.exception()
        self.server = None

    def restart(self) -> asyncio.Future[None]:
        """Start again on the same disk."""
        return self.start()

    def pause(self) -> None:
        """Pause, as in a long garbage collection or a stopped virtual machine."""
        assert self.incarnation is not None
        self.loop.trace.note("pause", self.name)
        self.incarnation.pause()

    def resume(self) -> None:
        """Resume; everything that became due runs now."""
        incarnation = self.incarnation
        if incarnation is not None and incarnation.held and not incarnation.dead:
            self.loop.trace.note("resume", self.name)
            incarnation.held = False
            if not incarnation.stalled:
                self.network.resume(incarnation)

    # ---- disk operations on the loop ---------------------------------------------------------------

    def _operated(self, kind: str, path: str) -> None:
        """A disk operation outside the lanes stops the whole process for as long as the disk takes."""
        incarnation = self.incarnation
        if incarnation is None or INCARNATION.get() is not incarnation or self.tasks.in_lane:
            return
        self.loop.trace.note("on_loop", f"{self.name} {kind} {path}")
        if self.started is not None and self.started.done():  # before that no requests are served
            stack = "".join(traceback.format_stack(limit=16)[:-3])
            self.loop.blocked.append(
                f"{self.name} waits for a disk on its loop: {kind} {path}\n{stack}"
            )
        now = self.loop.time()
        self._stalled_until_s = max(now, self._stalled_until_s) + self.tasks.disk_us() / 1e6
        if not incarnation.stalled:
            incarnation.stall()
            self._wake(incarnation)

    def _wake(self, incarnation: Incarnation) -> None:
        context = contextvars.Context()
        self.loop.call_at(self._stalled_until_s, self._go_on, incarnation, context=context)

    def _go_on(self, incarnation: Incarnation) -> None:
        if incarnation.dead:
            return
        if self._stalled_until_s > self.loop.time():
            self._wake(incarnation)
            return
        incarnation.stalled = False
        if not incarnation.held:
            self.network.resume(incarnation)


class ProcessDiedInStart(Exception):
    """The process was killed before its server had started."""
