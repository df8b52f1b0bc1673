"""Writes applied together have the results, versions, timestamps and files of writes applied one by one."""

import random

import pyarrow as pa
import pytest

from nyala.common.errors import Corrupt
from nyala.common.ids import CommittedOperation
from nyala.tablet.files import replicated_ops
from nyala.tablet.files.replicated_ops import RowOp, WriteOp
from nyala.tablet.kernels import ipc_messages
from tests.unit.tablet.support.tablet_support import (
    INT_KEY,
    PAIR_KEY,
    Driver,
    message,
    numbered,
    payload,
)


def everything(driver):
    """All versions by time, and after a flush the files but for columns (bits after a bitmap's end vary)."""
    view = driver.tablet.view()
    feed = [r for b in view.changes(0, driver.now, net=False) for r in b.to_pylist()]
    driver.flush()
    names = [n for n in driver.files.list(driver.directory) if not n.endswith(".dat")]
    return feed, {n: driver.files.read(f"{driver.directory}/{n}") for n in names}


VALUES = {
    "k": [-1, 0, 1, 2, None],
    "host": ["", "a", "a\0", None],
    "n": [-1, 0, 1],
    "a": [0, 1, None],
    "s": ["", "yy", None],
    "b": [b"", b"1", None],
}


def stretch(schema, chance):
    """Payloads of one kind, as one client's writes are, with rows of their own."""
    op = chance.choice([*RowOp, RowOp.UPSERT, RowOp.MIXED])
    keys = [c.name for c in schema.key_columns]
    values = [c.name for c in schema.value_columns]
    columns = keys + [n for n in values if chance.random() < 0.7]
    whole = chance.random() < 0.2
    made = []
    for _ in range(chance.randrange(1, 12)):
        rows = [
            {n: chance.choice(VALUES[n]) for n in columns} | {"_op": chance.randrange(1, 9)}
            for _ in range(chance.choice([0, 1, 1, 2, 5]))
        ]
        made.append(payload(schema, op, rows, columns, all_or_nothing=whole))
    return made


@pytest.mark.row("A2")
@pytest.mark.parametrize("schema", [INT_KEY, PAIR_KEY], ids=["int", "pair"])
@pytest.mark.parametrize("seed", range(12))
def test_grouped_writes_equal_single_writes(tmp_path, schema, seed):
    chance = random.Random(seed)
    one, other = (Driver(str(tmp_path / n), schema) for n in "ab")
    for _ in range(3):
        group = [one.entry(p) for _ in range(6) for p in stretch(schema, chance)]
        other.log = list(one.log)
        alone = [one.tablet.apply([entry])[0] for entry in group]
        assert other.tablet.apply(group) == alone
        assert one.tablet.rows == other.tablet.rows
        assert everything(one) == everything(other)


def test_every_write_of_a_group_has_a_version(tmp_path):
    driver = Driver(str(tmp_path / "t"))
    rows = [{"k": 1, "a": n, "s": "x" * n} for n in range(5)]
    driver.tablet.apply([driver.entry(payload(INT_KEY, RowOp.UPSERT, [r])) for r in rows])
    stamps = [entry.stamp for entry in driver.log]
    assert [driver.rows(at) for at in stamps] == [[r] for r in rows]
    assert driver.rows(stamps[0] - 1) == []


def counted(monkeypatch):
    calls = []
    real = ipc_messages.layouts

    def layouts(*given):
        calls.append(real(*given))
        return calls[-1]

    monkeypatch.setattr(ipc_messages, "layouts", layouts)
    return calls


def test_plain_messages_are_decoded_together(tmp_path, monkeypatch):
    driver, calls = Driver(str(tmp_path / "t")), counted(monkeypatch)
    rows = [{"k": n, "a": None if n % 3 else n, "s": "é" * n} for n in range(9)]
    writes = [driver.entry(payload(INT_KEY, RowOp.INSERT, rows[n : n + n % 3])) for n in range(9)]
    driver.tablet.apply(writes)
    assert calls == [True]
    assert driver.rows(ordered=True) == [r for n in range(9) for r in rows[n : n + n % 3]][::1]


def compressed(batch):
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    return batch.serialize().to_pybytes() if not len(batch) else _message(batch, options)


def _message(batch, options):
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    stream = sink.getvalue().to_pybytes()
    return stream[8 + int.from_bytes(stream[4:8], "little") : -8]


def test_other_messages_are_decoded_one_by_one(tmp_path, monkeypatch):
    driver, calls = Driver(str(tmp_path / "t")), counted(monkeypatch)
    names = [c.name for c in INT_KEY.columns]
    ids = tuple(c.id for c in INT_KEY.columns)
    entries = []
    for n in range(4):
        row = [pa.array([n]), pa.array([n]), pa.array(["text" * 50])]
        batch = pa.RecordBatch.from_arrays(row, names=names)
        entries.append(
            driver.entry(
                replicated_ops.encode(WriteOp(RowOp.INSERT, 0, ids, False, compressed(batch)))
            )
        )
    driver.tablet.apply(entries)
    assert calls == [False]
    assert [r["k"] for r in driver.rows()] == [0, 1, 2, 3]


@pytest.mark.parametrize("place", range(0, 400, 11))
def test_damage_in_a_group_is_reported_as_for_a_single_message(tmp_path, place):
    """For any changed byte: the same results as one by one, or Corrupt in both."""
    batch = pa.RecordBatch.from_pylist(
        numbered(0, 2), schema=pa.schema([(c.name, c.type) for c in INT_KEY.columns])
    )
    plain = message(batch)
    chance = random.Random(place)
    damaged = bytearray(plain)
    damaged[place % len(plain)] ^= 1 << chance.randrange(8)
    ids = tuple(c.id for c in INT_KEY.columns)

    def outcome(together):
        driver = Driver(str(tmp_path / f"{together}"))
        group = [
            driver.entry(replicated_ops.encode(WriteOp(RowOp.UPSERT, 0, ids, False, bytes(ipc))))
            for ipc in (plain, damaged, plain)
        ]
        try:
            parts: list[list[CommittedOperation]] = [group] if together else [[e] for e in group]
            results = [r for part in parts for r in driver.tablet.apply(part)]
        except Corrupt:
            return "corrupt"
        return results, driver.rows(ordered=True)

    assert outcome(True) == outcome(False)
