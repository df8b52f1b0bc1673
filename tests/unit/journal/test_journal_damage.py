"""Damage of a journal's files: any flipped byte, truncation or missing file is detected at opening."""

import random

import pytest

from nyala.common.errors import Corrupt
from nyala.common.ids import CommittedOperation, OpId
from nyala.journal import steps
from nyala.journal.journal import JournalMachine
from tests.sim.world.files import SimDisk
from tests.unit.journal.journal_disk import DIRECTORY, INFO, JournalOnDisk, prepared


def content_of(one: JournalOnDisk, name: str) -> bytearray:
    """Return the bytes of a file, which may be changed."""
    inode = one.disk.names.get(f"{DIRECTORY}/{name}")
    assert inode is not None
    return inode.content


def refusal(one: JournalOnDisk) -> Corrupt | None:
    """Open the files; return the error, or None."""
    try:
        JournalMachine.open(one.files, DIRECTORY)
    except Corrupt as err:
        return err
    return None


@pytest.fixture
def flushed() -> JournalOnDisk:
    """A journal with three data files, the last with all kinds of sections."""
    one = prepared(1)
    one.flush()
    assert [n.rpartition(".")[2] for n in one.files.list(DIRECTORY)] == ["jnl"] * 3 + ["JOURNAL"]
    return one


def test_every_flipped_byte_is_detected(flushed):
    for name in flushed.files.list(DIRECTORY):
        content = content_of(flushed, name)
        for place in range(len(content)):
            content[place] ^= 1 << place % 8
            found = refusal(flushed)
            content[place] ^= 1 << place % 8
            assert found, f"byte {place} of {name} was flipped, and the journal was opened"
            assert name in found.details["path"], found
    assert refusal(flushed) is None


def test_truncation_at_any_byte_is_detected(flushed):
    for name in flushed.files.list(DIRECTORY):
        content = content_of(flushed, name)
        whole = bytes(content)
        for length in range(len(whole)):
            del content[length:]
            found = refusal(flushed)
            content[:] = whole
            assert found, f"{name} was cut to {length} bytes, and the journal was opened"
            assert name in found.details["path"], found
    assert refusal(flushed) is None


def test_missing_file_is_detected_and_nothing_is_removed(flushed):
    flushed.files.write_new(f"{DIRECTORY}/stray", [b"x"])
    for name in flushed.files.list(DIRECTORY):
        if name == "stray":
            continue
        path = f"{DIRECTORY}/{name}"
        whole = flushed.files.read(path)
        flushed.files.remove(path)
        found = refusal(flushed)
        assert found, name
        assert name in found.message
        assert flushed.files.exists(f"{DIRECTORY}/stray")
        flushed.files.write_new(path, [whole])
    assert refusal(flushed) is None
    assert not flushed.files.exists(f"{DIRECTORY}/stray")


STEP = steps.Step(
    [steps.LogLast("a", 0), steps.KeyVersion("k", 0)],
    [steps.Append("a", b"1", (7,)), steps.SetKey("k", b"v"), steps.DeleteLog("b")],
)
OPERATIONS = {
    "step": steps.encode_step(STEP),
    "batch": steps.encode_batch(steps.Batch([STEP, steps.Step((), [steps.DeleteKey("k")])])),
    "definition": steps.encode_definition(steps.Definition(2, "renamed", 4096)),
}


@pytest.mark.parametrize("kind", OPERATIONS)
def test_damaged_operation_is_corrupt_and_never_another_error(kind):
    good, draw, refused = OPERATIONS[kind], random.Random(7), 0
    for _ in range(1000):
        damaged = bytearray(good[: draw.choice((len(good), draw.randrange(len(good) + 1)))])
        for _ in range(draw.randrange(4) if damaged else 0):
            damaged[draw.randrange(len(damaged))] ^= 1 << draw.randrange(8)
        journal = JournalMachine.create(SimDisk(random.Random(1)).mount(), DIRECTORY, INFO)
        try:
            journal.apply([CommittedOperation(OpId(1, 1), 1000, bytes(damaged))])
        except Corrupt:
            refused += 1
    assert refused > 300
