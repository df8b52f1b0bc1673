"""A replicated key-value store small enough to simulate by the hour: the replica engine without tablets.

`KvMachine` is a state machine on files, `KvServer` a process that serves it on one group, `KvClient`
retries until its deadline as the real client does.
"""

import base64
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from nyala.common.errors import NotLeader, NyalaError
from nyala.common.ids import Operation, OpId
from nyala.env.clock import random_id
from nyala.env.env import Env
from nyala.env.files import Files
from nyala.env.rpc import Method, Shape
from nyala.replica.state_machine import Cut
from tests.sim.linearizability import Kind
from tests.sim.workload import Failed, Unknown


class KvMachine:
    """key -> value, in memory, and in one file as of the cut.

    Args:
        files: the disk.
        directory: where its file is.
    """

    def __init__(self, files: Files, directory: str) -> None:
        self._files = files
        self._path = f"{directory}/state"
        self.rows: dict[int, int] = {}
        self.applied: list[tuple[OpId, int, bytes]] = []
        self._cut = Cut()
        self._bytes = 0
        files.make_dir(directory)
        if files.exists(self._path):
            state: dict[str, Any] = msgspec.json.decode(files.read(self._path))
            self.rows = {int(k): v for k, v in state["rows"].items()}
            extra = base64.b64decode(state["extra"])
            self._cut = Cut(OpId(state["term"], state["index"]), state["stamp"], extra)

    @property
    def cut(self) -> Cut:
        """What the file stands for."""
        return self._cut

    def apply(self, operations: Sequence[Operation]) -> list[bytes]:
        """Apply changes: `kind key value`."""
        results = []
        for operation in operations:
            kind, key, value = decode_change(operation.payload)
            fits = kind is Kind.WRITE or (key in self.rows) != (kind is Kind.INSERT)
            if fits and kind is Kind.DELETE:
                del self.rows[key]
            elif fits:
                self.rows[key] = value
            self.applied.append((operation.id, operation.stamp, operation.payload))
            self._bytes += len(operation.payload)
            results.append(b"\x01" if fits else b"\x00")
        return results

    def unflushed_bytes(self) -> int:
        """Bytes applied since the cut."""
        return self._bytes

    def prepare_flush(self, cut: Cut) -> Callable[[], Callable[[], None]] | None:
        """Write the whole state as of now."""
        state = msgspec.json.encode(
            {
                "term": cut.op.term,
                "index": cut.op.index,
                "stamp": cut.stamp,
                "extra": base64.b64encode(cut.extra).decode(),
                "rows": {str(k): v for k, v in self.rows.items()},
            }
        )
        self._bytes = 0

        def install() -> None:
            self._files.rename(self._path + ".new", self._path)
            self._files.sync_dir(self._path.rpartition("/")[0])
            self._cut = cut

        def build() -> Callable[[], None]:
            self._files.write_new(self._path + ".new", [state])
            return install

        return build

    def close(self) -> None:
        """Nothing is held open."""


def encode_change(kind: Kind, key: int, value: int) -> bytes:
    """Return the payload of one change."""
    return f"{kind.value} {key} {value}".encode()


def decode_change(payload: bytes) -> tuple[Kind, int, int]:
    """Read the payload of one change."""
    kind, key, value = payload.decode().split()
    return Kind(kind), int(key), int(value)


def _method(name: str) -> Method:
    return Method(
        f"sim.Kv/{name}",
        Shape.UNARY,
        msgspec.json.encode,
        msgspec.json.decode,
        msgspec.json.encode,
        msgspec.json.decode,
    )


CHANGE = _method("Change")
READ = _method("Read")
SESSION_CHANGE = _method("SessionChange")
"""As CHANGE, with client id, sequence and first outstanding sequence before it: may be sent again."""


STRAY_RATE = 0.2
"""How often a read goes to any server: whoever led before may still believe that it does."""


class KvClient:
    """Calls whoever leads, until its deadline.

    With sessions a change is sent again, the same bytes, whatever became of the last try. Without, an
    unknown outcome is told at once.

    Args:
        env: of the client's process.
        addresses: of all servers.
        timeout_ms: of one operation.
        sessions: whether the servers know a repeated change.
    """

    def __init__(
        self, env: Env, addresses: Sequence[str], timeout_ms: int = 4000, *, sessions: bool = False
    ) -> None:
        self._env = env
        self._addresses = list(addresses)
        self._timeout_ms = timeout_ms
        self._first = 0
        self._sessions = sessions
        self._id = random_id(env.random)
        self._sequence = 0

    async def read(self, key: int) -> int | None:
        """Return a key's value."""
        value: int | None = await self._ask(READ, [key], again=True, stray=True)
        return value

    async def change(self, kind: Kind, key: int, value: int) -> bool:
        """Do one change."""
        fits: bool
        if not self._sessions:
            fits = await self._ask(CHANGE, [kind.value, key, value], again=False)
            return fits
        self._sequence += 1
        header = [self._id, self._sequence, self._sequence]
        fits = await self._ask(SESSION_CHANGE, [*header, kind.value, key, value], again=True)
        return fits

    async def _ask(self, method: Method, request: Any, *, again: bool, stray: bool = False) -> Any:
        clock = self._env.clock
        deadline_us = clock.monotonic_us() + self._timeout_ms * 1000
        sent = False
        while (left_ms := (deadline_us - clock.monotonic_us()) // 1000) > 0:
            if stray and self._env.random.random() < STRAY_RATE:
                self._first = self._env.random.randrange(len(self._addresses))
            address = self._addresses[self._first]
            try:
                return await self._env.rpc.call(
                    address, method, request, timeout_ms=min(left_ms, 1500)
                )
            except NotLeader as err:
                hint = err.address
                if hint in self._addresses and hint != address:
                    self._first = self._addresses.index(hint)
                else:
                    self._first = (self._first + 1) % len(self._addresses)
            except NyalaError as err:
                self._first = (self._first + 1) % len(self._addresses)
                sent = True
                if not again:
                    raise Unknown(str(err)) from err
            await self._env.tasks.sleep_ms(20)
        if sent and not stray:
            raise Unknown(f"no answer in {self._timeout_ms} ms")
        raise Failed(f"no leader in {self._timeout_ms} ms")
