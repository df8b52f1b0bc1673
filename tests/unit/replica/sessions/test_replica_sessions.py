"""Exactly-once as a table: duplicates, expiry by stamps, limits, bytes, and a naive implementation."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nyala.common.errors import BadChecksum, BadVersion, Corrupt, InvalidArgument
from nyala.common.hybrid_time import from_micros
from nyala.replica.member import client_sessions, session_header
from nyala.replica.member.client_sessions import Admitted, ClientSessions
from nyala.replica.member.session_header import Header, unwrap, wrap

GOLDEN = Path(__file__).parents[3] / "golden" / "replica"
ANN, BOB = b"a" * 16, b"b" * 16
SECOND = from_micros(1_000_000)
RUN, DUPLICATE, EXPIRED = Admitted.RUN, Admitted.DUPLICATE, Admitted.EXPIRED


def header(sequence, client=ANN, first=0, ttl_s=600, crc=1, since=None):
    return Header(client, sequence, first, ttl_s, crc, since)


def do(table, sequence, stamp=1, result=b"ok", **more):
    """Admit an operation, and add its result if it ran."""
    verdict, saved = table.admit(header(sequence, **more), stamp)
    if verdict is RUN:
        assert saved is not None
        table.keep(saved, result)
    return verdict


@pytest.mark.row("A8")
def test_retry_returns_result_and_timestamp_of_first_attempt():
    table = ClientSessions()
    assert do(table, 1, stamp=10, result=b"first") is RUN
    verdict, saved = table.admit(header(1), 20)
    assert saved is not None
    assert (verdict, saved.result, saved.stamp) == (DUPLICATE, b"first", 10)


def test_clients_have_separate_sequence_numbers():
    table = ClientSessions()
    assert do(table, 1) is RUN
    assert do(table, 1, client=BOB) is RUN


def test_same_sequence_with_other_bytes_is_distinguished():
    table = ClientSessions()
    assert do(table, 1, crc=1) is RUN
    assert do(table, 1, crc=2) is Admitted.OTHER_BYTES
    assert do(table, 1, crc=1) is DUPLICATE


def test_operations_in_flight_may_arrive_in_any_order():
    table = ClientSessions()
    assert [do(table, n) for n in (5, 3, 4, 3)] == [RUN, RUN, RUN, DUPLICATE]


def test_acknowledged_results_are_dropped_and_never_reexecuted():
    table = ClientSessions()
    for n in range(1, 6):
        do(table, n)
    assert do(table, 6, first=4) is RUN
    assert len(table) == 3
    assert [do(table, n) for n in (1, 2, 3, 4, 5)] == [EXPIRED] * 3 + [DUPLICATE] * 2


def test_large_first_outstanding_is_accepted():
    table = ClientSessions()
    do(table, 1)
    assert do(table, 1 << 62, first=1 << 62) is RUN
    assert do(table, 7) is EXPIRED


def test_results_expire_by_entry_timestamps_and_never_reexecute():
    table = ClientSessions()
    do(table, 1, stamp=SECOND, ttl_s=10)
    assert do(table, 1, stamp=11 * SECOND - 1) is DUPLICATE
    assert do(table, 1, stamp=11 * SECOND) is EXPIRED
    assert do(table, 2, stamp=11 * SECOND + 1) is RUN


def test_session_time_to_live_comes_from_the_entry():
    table = ClientSessions()
    do(table, 1, stamp=0, ttl_s=1)
    do(table, 2, stamp=1, ttl_s=100)
    assert do(table, 2, stamp=50 * SECOND) is DUPLICATE
    assert do(table, 1, stamp=50 * SECOND) is EXPIRED


def test_client_cannot_evict_other_clients(monkeypatch):
    monkeypatch.setattr(client_sessions, "MAX_RESULTS_PER_CLIENT", 8)
    table = ClientSessions()
    do(table, 1, client=BOB)
    for n in range(1, 100):
        assert do(table, n) is RUN
    assert len(table) <= 9
    assert do(table, 1, client=BOB) is DUPLICATE
    assert do(table, 99) is DUPLICATE
    assert do(table, 1) is EXPIRED


def test_results_are_bounded_in_number_with_oldest_evicted_first(monkeypatch):
    monkeypatch.setattr(client_sessions, "MAX_RESULTS", 3)
    table = ClientSessions()
    for n in range(1, 6):
        do(table, n)
    assert len(table) == 3
    assert [do(table, n) for n in (2, 3, 5)] == [EXPIRED, DUPLICATE, DUPLICATE]


def test_result_bytes_are_bounded_but_executed_sequences_stay_known(monkeypatch):
    monkeypatch.setattr(client_sessions, "MAX_KEPT_BYTES", 100)
    table = ClientSessions()
    for n in range(1, 5):
        do(table, n, result=b"x" * 40)
    results = [saved and saved.result for _, saved in (table.admit(header(n), 5) for n in (1, 4))]
    assert results == [None, b"x" * 40]
    assert do(table, 1) is DUPLICATE
    assert len(table) == 4


def test_clients_are_bounded_with_least_recent_evicted(monkeypatch):
    monkeypatch.setattr(client_sessions, "MAX_CLIENTS", 2)
    table = ClientSessions()
    do(table, 1, client=ANN)
    do(table, 1, client=BOB)
    do(table, 2, client=ANN)
    do(table, 1, client=b"c" * 16)
    assert table.clients == 2
    assert do(table, 1, client=ANN) is DUPLICATE
    assert len(table) == 3


# ---- a naive implementation -------------------------------------------------------------------------


class ReferenceTable:
    """Reference implementation: a list of all operations, searched for each request."""

    def __init__(self):
        self.log = []  # (client, sequence, expires, crc)
        self.floor = {}

    def admit(self, h, stamp):
        for client, sequence, expires, _ in self.log:
            if expires <= stamp:
                self.floor[client] = max(self.floor.get(client, 0), sequence + 1)
        self.log = [x for x in self.log if x[2] > stamp]
        floor = self.floor[h.client_id] = max(self.floor.get(h.client_id, 0), h.first_outstanding)
        self.log = [x for x in self.log if x[0] != h.client_id or x[1] >= h.first_outstanding]
        for client, sequence, _, crc in self.log:
            if (client, sequence) == (h.client_id, h.sequence):
                return DUPLICATE if crc == h.crc else Admitted.OTHER_BYTES
        if h.sequence < floor:
            return EXPIRED
        self.log.append((h.client_id, h.sequence, stamp + h.ttl_s * SECOND, h.crc))
        return RUN


operations = st.lists(
    st.tuples(
        st.sampled_from([ANN, BOB]),
        st.integers(0, 12),  # sequence
        st.integers(0, 12),  # first outstanding, cut to the sequence
        st.sampled_from([1, 1, 1, 2]),  # crc
        st.integers(1, 3 * SECOND),  # time since the one before
    ),
    max_size=60,
)


@given(operations, st.integers(0, 60))
def test_sessions_equal_reference_model_also_after_restart(steps, restart):
    table, reference, stamp = ClientSessions(), ReferenceTable(), 0
    for position, (client, sequence, first, crc, later) in enumerate(steps):
        stamp += later
        if position == restart:
            table = ClientSessions.load(table.dump())
        h = header(sequence, client, min(first, sequence), ttl_s=10, crc=crc)
        expected = reference.admit(h, stamp)
        verdict, saved = table.admit(h, stamp)
        assert verdict is expected, (position, h)
        if verdict is RUN:
            assert saved is not None
            table.keep(saved, b"%d" % position)
    assert len(table) == len(reference.log)


# ---- bytes -------------------------------------------------------------------------------------------


def sample():
    table = ClientSessions()
    do(table, 1, stamp=5, result=b"one")
    do(table, 2, stamp=6, result=b"")
    do(table, 9, client=BOB, stamp=7, first=9, crc=77)
    return table


def test_session_table_round_trips_through_bytes():
    table = sample()
    again = ClientSessions.load(table.dump())
    assert again.dump() == table.dump()
    assert do(again, 1, stamp=8) is DUPLICATE
    assert do(again, 8, client=BOB, stamp=9) is EXPIRED
    assert len(ClientSessions.load(b"")) == 0


def test_session_table_of_version_1_is_readable():
    raw = (GOLDEN / "sessions-v1.bin").read_bytes()
    old = ClientSessions.load(raw)
    assert (len(old), old.clients, old.forgotten) == (3, 2, 0)
    assert do(old, 1, stamp=8) is DUPLICATE
    assert do(old, 8, client=BOB, stamp=9) is EXPIRED


def test_session_format_version_2_is_unchanged():
    table = sample()
    table.forgotten = 3
    assert do(table, 10, client=BOB, stamp=9, first=9, since=8) is RUN
    raw = (GOLDEN / "sessions-v2.bin").read_bytes()
    assert table.dump() == raw == ClientSessions.load(raw).dump()
    assert ClientSessions.load(raw).forgotten == 3


def test_damaged_bytes_are_refused_whichever_byte_it_is():
    raw = sample().dump()
    for offset in range(len(raw)):
        bad = raw[:offset] + bytes([raw[offset] ^ 1]) + raw[offset + 1 :]
        with pytest.raises((BadChecksum, BadVersion)):
            ClientSessions.load(bad)
    for length in range(1, len(raw)):
        with pytest.raises(BadChecksum):
            ClientSessions.load(raw[:length])


def test_session_header_carries_client_and_sequence():
    wrapped = wrap(b"payload", ANN, 7, 3, 600)
    found, payload = unwrap(wrapped)
    assert payload == b"payload"
    assert (found.client_id, found.sequence, found.first_outstanding) == (ANN, 7, 3)
    assert found.ttl_s == 600
    assert found.crc != unwrap(wrap(b"Payload", ANN, 7, 3, 600))[0].crc
    assert found.since == 0
    operation = wrap(b"payload", ANN, 7, 3, 600, 1 << 60)
    assert (unwrap(operation)[0].since, unwrap(operation)[0].table_kib) == (1 << 60, 0)
    operation = wrap(b"payload", ANN, 7, 3, 600, 1 << 60, 5)
    assert unwrap(operation)[0].table_kib == 5
    assert operation == (GOLDEN / "operation-v3.bin").read_bytes()


def test_operation_of_version_2_is_readable():
    found, payload = unwrap((GOLDEN / "operation-v2.bin").read_bytes())
    assert (payload, found.client_id, found.sequence) == (b"payload", ANN, 7)
    assert (found.ttl_s, found.since, found.table_kib) == (600, 1 << 60, 0)


def test_operation_of_version_1_is_readable():
    found, payload = unwrap((GOLDEN / "operation-v1.bin").read_bytes())
    assert (payload, found.client_id, found.sequence) == (b"payload", ANN, 7)
    assert (found.first_outstanding, found.ttl_s, found.since) == (3, 600, None)


def test_unknown_or_missing_session_header_is_refused():
    wrapped = wrap(b"payload", ANN, 7, 3, 600)
    with pytest.raises(BadVersion, match=r"version 5.* or it is damaged.* else copy the replica"):
        unwrap(b"\x05" + wrapped[1:])
    with pytest.raises(Corrupt):
        unwrap(wrapped[: -len(b"payload") - 1])
    with pytest.raises(Corrupt):
        unwrap(b"")


@pytest.mark.parametrize(
    ("client", "sequence", "first"),
    [(b"", 1, 1), (b"x" * 17, 1, 1), (ANN, 1, 2), (ANN, -1, -1), (ANN, 1 << 63, 0), (ANN, 0, -1)],
)
def test_invalid_client_ids_are_refused(client, sequence, first):
    with pytest.raises(InvalidArgument):
        session_header.check(client, sequence, first)
    session_header.check(ANN, (1 << 63) - 1, 0)
