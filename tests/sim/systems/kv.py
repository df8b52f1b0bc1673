"""A replicated key-value store for simulations of hours: the replica engine without tablets.

`KvMachine` is a state machine on files, `KvServer` a process that serves it on one group, `KvClient`
retries until its deadline as the real client does.
"""

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import msgspec

from nyala.common.errors import Corrupt, InvalidArgument, NotLeader, NyalaError, Unavailable
from nyala.common.hybrid_time import LOGICAL_BITS
from nyala.common.ids import NO_OP, CommittedOperation, OpId
from nyala.env.clock import random_id
from nyala.env.env import Env
from nyala.env.files import Files
from nyala.env.rpc import Method, Shape
from nyala.replica.state_machine import AnyCheckpoint, FlushPoint
from tests.sim.checkers.linearizability import Kind
from tests.sim.runs.workload import Failed, Unknown

HISTORY_US = 40_000_000
"""Age, by timestamps of entries, after which versions of a key may be removed."""
IMAGE_EVERY = 64
"""Interval of indexes between checksums of the whole state."""


@dataclass(frozen=True, slots=True)
class Applied:
    """One operation as a machine applied it; `before` is the operation that it applied before."""

    id: OpId
    before: OpId
    stamp: int
    payload: bytes
    result: bytes
    image: int | None


class KvMachine:
    """key -> value with its versions, in memory, and in one file as of the cut.

    Args:
        files: the disk.
        directory: where its file is.
    """

    def __init__(self, files: Files, directory: str) -> None:
        self._files = files
        self._path = f"{directory}/state"
        self.rows: dict[int, int] = {}
        self.versions: dict[int, list[tuple[int, int | None]]] = {}
        self.applied: list[Applied] = []
        self.last = NO_OP
        self.horizon = 0
        self._flush_point = FlushPoint()
        self._bytes = 0
        files.make_dir(directory)
        if files.exists(self._path):
            self._load(files.read(self._path))
            files.sync_dir(directory)

    def _load(self, raw: bytes) -> None:
        if crc32(raw[4:]).to_bytes(4, "little") != raw[:4]:
            raise Corrupt(f"{self._path} is damaged")
        state: dict[str, Any] = msgspec.json.decode(raw[4:])
        self.versions = {
            int(k): [(stamp, value) for stamp, value in v] for k, v in state["versions"].items()
        }
        self.rows = {k: v[-1][1] for k, v in self.versions.items() if v[-1][1] is not None}
        self.last = OpId(*state["last"])
        self.horizon = state["horizon"]
        extra = base64.b64decode(state["extra"])
        self._flush_point = FlushPoint(OpId(state["term"], state["index"]), state["stamp"], extra)

    @property
    def flush_point(self) -> FlushPoint:
        """Cut of the log in the file."""
        return self._flush_point

    def apply(self, operations: Sequence[CommittedOperation]) -> list[bytes]:
        """Apply changes: `kind key value`."""
        results = []
        for operation in operations:
            kind, key, value = decode_change(operation.payload)
            fits = kind is Kind.WRITE or (key in self.rows) != (kind is Kind.INSERT)
            if fits:
                after = None if kind is Kind.DELETE else value
                self.versions.setdefault(key, []).append((operation.stamp, after))
                if after is None:
                    del self.rows[key]
                else:
                    self.rows[key] = after
            result = b"\x01" if fits else b"\x00"
            image = None
            if operation.id.index % IMAGE_EVERY == 0:
                self._forget(operation.stamp - (HISTORY_US << LOGICAL_BITS))
                image = crc32(self._state())
            before, self.last = self.last, operation.id
            self.applied.append(
                Applied(operation.id, before, operation.stamp, operation.payload, result, image)
            )
            self._bytes += len(operation.payload)
            results.append(result)
        return results

    def at(self, stamp: int) -> list[tuple[int, int]]:
        """Return all rows as of a time, by key.

        Raises:
            Unavailable: the time is below the horizon.
        """
        if stamp < self.horizon:
            raise Unavailable(f"the rows at {stamp} are removed")
        rows = []
        for key in sorted(self.versions):
            value = None
            for since, one in self.versions[key]:
                if since > stamp:
                    break
                value = one
            if value is not None:
                rows.append((key, value))
        return rows

    def _forget(self, horizon: int) -> None:
        """Remove versions that ended before a time, equally at every member, since timestamps are equal."""
        self.horizon = max(self.horizon, horizon)
        for key, versions in list(self.versions.items()):
            keep = len(versions) - 1
            while keep and versions[keep][0] > horizon:
                keep -= 1
            del versions[:keep]
            if len(versions) == 1 and versions[0][1] is None and versions[0][0] <= horizon:
                del self.versions[key]

    def _state(self) -> bytes:
        return msgspec.json.encode(sorted(self.versions.items()))

    def unflushed_bytes(self) -> int:
        """Bytes applied since the cut."""
        return self._bytes

    def prepare_flush(self, flush_point: FlushPoint) -> Callable[[], Callable[[], None]] | None:
        """Write the whole state as of now."""
        body = msgspec.json.encode(
            {
                "term": flush_point.op.term,
                "index": flush_point.op.index,
                "stamp": flush_point.stamp,
                "extra": base64.b64encode(flush_point.extra).decode(),
                "versions": {str(k): v for k, v in self.versions.items()},
                "last": [self.last.term, self.last.index],
                "horizon": self.horizon,
            }
        )
        state = crc32(body).to_bytes(4, "little") + body
        self._bytes = 0

        def install() -> None:
            self._files.rename(self._path + ".new", self._path)
            self._files.sync_dir(self._path.rpartition("/")[0])
            self._flush_point = flush_point

        def build() -> Callable[[], None]:
            self._store(flush_point, state)
            return install

        return build

    def _store(self, flush_point: FlushPoint, state: bytes) -> None:
        self._files.write_new(self._path + ".new", [state])

    def checkpoint(self) -> AnyCheckpoint:
        raise InvalidArgument("this machine is not copied")

    def close(self) -> None:
        """Close nothing: no resources are held."""


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
SNAPSHOT = _method("Snapshot")
"""[T, or null for now] at the leader -> [T, rows as of T]."""
STALE = _method("Stale")
"""[least T] at any member -> [T, rows as of T], some seconds old at most."""
SESSION_CHANGE = _method("SessionChange")
"""As CHANGE, with client id, sequence and first outstanding sequence before it: may be sent again."""


STRAY_RATE = 0.2
"""Probability that a read goes to any server, possibly to a deposed leader."""


TRY_MS = 700
"""Deadline of one try."""


class KvClient:
    """Client that calls the leader, until its deadline.

    With sessions a change is sent again with the same bytes after any outcome. Without, an
    unknown outcome is reported at once.

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

    async def snapshot(self, at: int | None) -> tuple[int, list[list[int]]]:
        """Return (T, all rows as of T) from the leader. Raises Failed."""
        found, rows = await self._ask(SNAPSHOT, [at], again=True, stray=True)
        return found, rows

    async def stale(self, least: int) -> tuple[int, list[list[int]]]:
        """Return (T, all rows as of T) from any server. Raises Failed."""
        address = self._env.random.choice(self._addresses)
        try:
            found, rows = await self._env.rpc.call(address, STALE, [least], timeout_ms=1500)
        except NyalaError as err:
            raise Failed(str(err)) from err
        return found, rows

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
                    address, method, request, timeout_ms=min(left_ms, TRY_MS)
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
