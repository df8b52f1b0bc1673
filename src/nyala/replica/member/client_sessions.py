"""Client sessions for exactly-once writes: the operations that have taken effect, and their results.

The session table is replicated state, saved in `FlushPoint.extra` (bytes: docs/internals/replica.md). It
changes only when entries are applied, in lane APPLY, and depends on the entries alone: results expire by the
stamps of entries, each entry carries the time to live of its result and the maximum size of the session table
(`client_results_bytes`), and all other limits are constants.

Two session tables that applied the same entries make the same decisions, however the entries were grouped.
"""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

import google_crc32c
import msgspec

from nyala.common.errors import BadChecksum, Corrupt, newer_version
from nyala.common.hybrid_time import from_micros
from nyala.replica.member.session_header import NO_OWNER, Header

MAX_CLIENTS = 16_384
"""Maximum number of clients; beyond it the client with the oldest last write is forgotten.

The time of that write is kept (`ClientSessions.forgotten`): an operation of an unknown client may have been
executed up to that time, and is refused unless its `since` is later.
"""
MAX_RESULTS = 131_072
"""Maximum number of results of all clients; beyond it the oldest expires early."""
MAX_RESULTS_PER_CLIENT = 16_384
"""Maximum number of results of one client; beyond it the lower half of its sequences expires early."""
MAX_KEPT_BYTES = 32 << 20
"""Maximum bytes of all payloads of results; beyond it older payloads are dropped, their records stay."""

RESULT_BYTES, CLIENT_BYTES = 400, 300
"""Bytes of memory of one result without its payload, and of one client; measured."""

Key = tuple[int, bytes]
"""Owner and client id: who computes the id of another user, or of the servers, has a session of his own."""
_Rows = list[tuple[bytes, int, int, int, int, bytes | None]]
_OwnedRows = list[tuple[bytes, int, int, int, int, bytes | None, int]]
_Clients = list[tuple[bytes, int, int, int, int]]
_Body = tuple[_Clients, _OwnedRows, int]
"""Clients by last use, as in `_Client`; results by stamp: client, sequence, stamp, expiry, CRC, bytes, owner;
`forgotten`.
"""
_DECODER = msgspec.msgpack.Decoder(_Body)
_DECODER_3 = msgspec.msgpack.Decoder(tuple[_Clients, _Rows, int])
_DECODER_2 = msgspec.msgpack.Decoder(tuple[list[tuple[bytes, int, int, int]], _Rows, int])
_DECODER_1 = msgspec.msgpack.Decoder(tuple[list[tuple[bytes, int]], _Rows])
_MAGIC = b"NYSS"
_VERSION = 4
_HEAD_BYTES = 12


class Admitted(Enum):
    """Decision on an operation: run it, or the reason why not."""

    RUN = "run"
    DUPLICATE = "duplicate"
    EXPIRED = "expired"
    FORGOTTEN = "forgotten"
    OTHER_BYTES = "other bytes"


class SavedResult:
    """Record of one operation; `result` is None until it has run, and after its bytes are dropped."""

    __slots__ = ("client", "crc", "dropped", "expires", "result", "sequence", "stamp")

    def __init__(
        self, client: Key, sequence: int, stamp: int, expires: int, crc: int, result: bytes | None
    ) -> None:
        self.client = client
        self.sequence = sequence
        self.stamp = stamp
        self.expires = expires
        self.crc = crc
        self.result = result
        self.dropped = False


@dataclass(slots=True)
class _Client:
    """Record of one client.

    Attributes:
        floor: sequence number below which no operation is executed; one without a result here has expired, or
            its result was acknowledged.
        results: by sequence number.
        used: hybrid time after which no operation of this client with a `since` was executed.
        created: hybrid time up to which an earlier record of this client may have been forgotten: an
            operation with an earlier `since` and without a result here may have been executed.
    """

    floor: int
    results: dict[int, SavedResult]
    used: int = 0
    created: int = 0


class ClientSessions:
    """The session table of one replica. Lane APPLY only.

    Attributes:
        forgotten: hybrid time after which no operation of a forgotten client was executed; 0: no client was
            forgotten.
    """

    def __init__(self) -> None:
        self.forgotten = 0
        self._clients: OrderedDict[Key, _Client] = OrderedDict()  # by last use
        self._owned = 0  # clients with an owner
        self._results: OrderedDict[tuple[Key, int], SavedResult] = OrderedDict()  # by stamp
        self._kept_bytes = 0
        self._kept_most = MAX_KEPT_BYTES

    def __len__(self) -> int:
        return len(self._results)

    @property
    def clients(self) -> int:
        """Number of clients in the session table."""
        return len(self._clients)

    @property
    def memory_bytes(self) -> int:
        """Approximate memory of the session table, in bytes. Any lane."""
        return self._kept_bytes + self._known_bytes

    @property
    def _known_bytes(self) -> int:
        return RESULT_BYTES * len(self._results) + CLIENT_BYTES * len(self._clients)

    def admit(self, header: Header, stamp: int) -> tuple[Admitted, SavedResult | None]:
        """Decide whether the next operation of the log is executed.

        Args:
            header: session header of the operation.
            stamp: stamp of its entry.

        Returns:
            RUN with a record, to be completed by `keep`; DUPLICATE or OTHER_BYTES with the record of the
            first attempt; EXPIRED or FORGOTTEN with None. FORGOTTEN: the operation may have been executed for
            a client that was forgotten since.
        """
        self._expire(stamp)
        since, key = header.since, self._key_of(header)
        earlier = self._earlier(key)
        if earlier is not None and (found := _found_in(earlier, header)) is not None:
            return found
        known = self._clients.get(key, earlier)
        if since is not None and self._may_have_run(known, header.sequence, since):
            return Admitted.FORGOTTEN, None
        client = self._client(key, self.forgotten if earlier is None else earlier.created)
        if since is not None:
            client.used = max(client.used, stamp, since)
        self._acknowledge(client, header.first_outstanding)
        if (found := _found_in(client, header)) is not None:
            return found
        expires = stamp + from_micros(header.ttl_s * 1_000_000)
        saved = SavedResult(key, header.sequence, stamp, expires, header.crc, None)
        client.results[header.sequence] = saved
        self._results[key, header.sequence] = saved
        self._enforce_limits(client, header.table_kib << 10)
        return Admitted.RUN, saved

    def _key_of(self, header: Header) -> Key:
        """Return the client of an operation; without an owner it is one of any owner, if there is one."""
        key = header.owner, header.client_id
        if header.owner != NO_OWNER or not self._owned or key in self._clients:
            return key
        owners = (owner for owner, client_id in self._clients if client_id == header.client_id)
        return min(owners, default=NO_OWNER), header.client_id

    def _earlier(self, key: Key) -> _Client | None:
        """Return the client without an owner that an earlier release has recorded under an owner's id.

        It may be this owner's: what it has executed is not executed again. No owner changes it.
        """
        owner, client_id = key
        return None if owner == NO_OWNER else self._clients.get((NO_OWNER, client_id))

    def keep(self, saved: SavedResult, result: bytes) -> None:
        """Keep the result of an admitted operation. Called in the order of the operations."""
        saved.result = result
        if saved.dropped:
            return
        self._kept_bytes += len(result)
        if self._kept_bytes > self._kept_most:
            for old in self._results.values():
                if old.result is not None:
                    self._kept_bytes -= len(old.result)
                    old.result = None
                if self._kept_bytes <= self._kept_most // 2:
                    break

    def _may_have_run(self, client: _Client | None, sequence: int, since: int) -> bool:
        """Return whether an operation may have been executed for a client that was forgotten since."""
        if client is None:
            return 0 < self.forgotten >= since
        return 0 < client.created >= since and sequence not in client.results

    # ---- expiry ------------------------------------------------------------------------------------

    def _expire(self, now: int) -> None:
        while self._results:
            oldest = next(iter(self._results.values()))
            if oldest.expires > now:
                return
            self._drop(oldest)

    def _acknowledge(self, client: _Client, first: int) -> None:
        """Drop the results of sequences below `first`, which the client has received."""
        if first <= client.floor:
            return
        results = client.results
        if first - client.floor <= len(results):
            acknowledged = [s for s in range(client.floor, first) if s in results]
        else:
            acknowledged = [s for s in results if s < first]
        client.floor = first
        for sequence in acknowledged:
            self._remove(results.pop(sequence))

    def _drop(self, saved: SavedResult) -> None:
        """Drop a result; its sequence is never executed again."""
        client = self._clients[saved.client]
        del client.results[saved.sequence]
        client.floor = max(client.floor, saved.sequence + 1)
        self._remove(saved)

    def _remove(self, saved: SavedResult) -> None:
        del self._results[saved.client, saved.sequence]
        saved.dropped = True
        if saved.result is not None:
            self._kept_bytes -= len(saved.result)

    def _client(self, key: Key, created: int) -> _Client:
        client = self._clients.get(key)
        if client is not None:
            self._clients.move_to_end(key)
            return client
        client = self._clients[key] = _Client(0, {}, created=created)
        self._owned += key[0] != NO_OWNER
        if len(self._clients) > MAX_CLIENTS:
            self._forget_oldest()
        return client

    def _forget_oldest(self) -> None:
        """Remove the client with the oldest last write."""
        (owner, client_id), oldest = next(iter(self._clients.items()))
        self.forgotten = max(self.forgotten, oldest.used)
        for saved in self._clients.pop((owner, client_id)).results.values():
            self._remove(saved)
        self._owned -= owner != NO_OWNER
        if owner == NO_OWNER and self._owned:  # it was the earlier record of these
            for (_, other_id), client in self._clients.items():
                if other_id == client_id:
                    client.created = max(client.created, oldest.used)

    def _enforce_limits(self, client: _Client, table_bytes: int) -> None:
        """Enforce the limits after an operation of a client was admitted.

        The payloads present at a moment depend on how entries were grouped, so they must not decide which
        records are dropped: half of the session table's size is for payloads, the other half for records.
        """
        known_bytes, results = table_bytes // 2, MAX_RESULTS_PER_CLIENT
        self._kept_most = min(MAX_KEPT_BYTES, known_bytes or MAX_KEPT_BYTES)
        if known_bytes:  # one client uses at most half of it
            results = min(results, max(1, known_bytes // 2 // RESULT_BYTES))
        if len(client.results) > results:
            for sequence in sorted(client.results)[: max(1, results // 2)]:
                self._drop(client.results[sequence])
        if len(self._results) > MAX_RESULTS:
            self._drop(next(iter(self._results.values())))
        while 0 < known_bytes < self._known_bytes and len(self._clients) > 1:
            self._forget_oldest()

    # ---- bytes -------------------------------------------------------------------------------------

    def dump(self) -> bytes:
        """Return the bytes of the session table for `FlushPoint.extra`; equal tables have equal bytes.

        Without owners they have version 2, and without an id of two owners version 3, which earlier
        releases read.
        """
        version = 3 if self._owned else 2
        if self._owned and len({i for _, i in self._clients}) < len(self._clients):
            version = 4
        clients = [(i, c.floor, c.used, c.created, o) for (o, i), c in self._clients.items()]
        kept = clients if version > 2 else [c[:4] for c in clients]
        rows = list(self._rows()) if version > 3 else [r[:-1] for r in self._rows()]
        body = msgspec.msgpack.encode((kept, rows, self.forgotten))
        head = _MAGIC + version.to_bytes(4, "little")
        crc = int(google_crc32c.value(head + body))
        return head + crc.to_bytes(4, "little") + body

    def _rows(self) -> Iterator[tuple[bytes, int, int, int, int, bytes | None, int]]:
        for s in self._results.values():
            owner, client_id = s.client
            yield client_id, s.sequence, s.stamp, s.expires, s.crc, s.result, owner

    @classmethod
    def load(cls, raw: bytes) -> "ClientSessions":
        """Read a session table from its bytes; empty bytes are an empty table.

        Raises:
            BadChecksum: they are damaged. BadVersion: another build wrote them. Corrupt: the checksum matches
                and the content is invalid.
        """
        sessions = cls()
        clients, rows, sessions.forgotten = _parse(raw) if raw else ([], [], 0)
        for client_id, floor, used, created, owner in clients:
            sessions._clients[owner, client_id] = _Client(floor, {}, used, created)
            sessions._owned += owner != NO_OWNER
        for client_id, sequence, stamp, expires, crc, result, owner in rows:
            key = owner, client_id
            if key not in sessions._clients:
                raise Corrupt(f"the saved client sessions lack client {client_id.hex()}")
            saved = SavedResult(key, sequence, stamp, expires, crc, result)
            sessions._clients[key].results[sequence] = saved
            sessions._results[key, sequence] = saved
            sessions._kept_bytes += 0 if result is None else len(result)
        return sessions


def _found_in(client: _Client, header: Header) -> tuple[Admitted, SavedResult | None] | None:
    """Return why a client has an operation already; None: it is to be executed."""
    saved = client.results.get(header.sequence)
    if saved is not None:
        return (Admitted.DUPLICATE if saved.crc == header.crc else Admitted.OTHER_BYTES), saved
    return (Admitted.EXPIRED, None) if header.sequence < client.floor else None


def _parse(raw: bytes) -> _Body:
    if len(raw) < _HEAD_BYTES or raw[:4] != _MAGIC:
        raise BadChecksum(
            "the saved client sessions are damaged: they do not begin with their magic"
        )
    version = int.from_bytes(raw[4:8], "little")
    if int.from_bytes(raw[8:12], "little") != int(google_crc32c.value(raw[:8] + raw[12:])):
        raise BadChecksum("the saved client sessions are damaged: their checksum does not match")
    if not 1 <= version <= _VERSION:
        raise newer_version("the saved table of client sessions", version, _VERSION)
    try:
        if version == 1:
            pairs, rows = _DECODER_1.decode(raw[_HEAD_BYTES:])
            return _with_owners([(i, floor, 0, 0, NO_OWNER) for i, floor in pairs], rows, 0)
        if version == 2:
            without, rows, forgotten = _DECODER_2.decode(raw[_HEAD_BYTES:])
            return _with_owners([(*c, NO_OWNER) for c in without], rows, forgotten)
        if version == 3:
            return _with_owners(*_DECODER_3.decode(raw[_HEAD_BYTES:]))
        body: _Body = _DECODER.decode(raw[_HEAD_BYTES:])
    except msgspec.MsgspecError as err:
        raise Corrupt(f"the saved client sessions have invalid content: {err}") from err
    return body


def _with_owners(clients: _Clients, rows: _Rows, forgotten: int) -> _Body:
    """Return a table of version 3 or before, in which an id has one owner, as one of this version."""
    owners = {client_id: owner for client_id, *_, owner in clients}
    return clients, [(*r, owners.get(r[0], NO_OWNER)) for r in rows], forgotten
