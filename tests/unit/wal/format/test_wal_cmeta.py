"""Consensus metadata: saved atomically, checked when loaded."""

import contextlib
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nyala.common.errors import BadChecksum, BadVersion, Corrupt
from nyala.raft.messages import HardState
from nyala.wal.cmeta import ConsensusMetadata, decode, encode
from nyala.wal.segments.format import crc32c
from tests.sim.world.loop import run
from tests.unit.wal.support.wal_cmeta import CONFIG
from tests.unit.wal.support.wal_harness import UUID, A, B, Machine, vote
from tests.unit.wal.support.wal_mutator import DISK, mutated

GOLDEN = Path(__file__).parents[3] / "golden" / "wal"


@given(st.integers(0, 2**63), st.one_of(st.none(), st.text(max_size=40)))
def test_cmeta_round_trips(term, uuid):
    state = HardState(term, uuid)
    assert decode(A, encode(A, state, CONFIG), "p") == (state, CONFIG)


def test_save_load_delete_and_list():
    async def main(loop):
        machine = Machine(loop)
        cmeta = ConsensusMetadata(machine.files(), "/d")
        assert cmeta.load(A) is None
        assert cmeta.groups() == []
        cmeta.delete(A)
        cmeta.save(B, vote(1), CONFIG)
        cmeta.save(A, vote(2, UUID), CONFIG)
        cmeta.save(A, vote(3), CONFIG)
        machine.disk.crash()
        cmeta = ConsensusMetadata(machine.files(), "/d")
        assert cmeta.groups() == [A, B]
        assert cmeta.load(A) == (vote(3), CONFIG)
        cmeta.delete(A)
        machine.disk.crash()
        cmeta = ConsensusMetadata(machine.files(), "/d")
        assert (cmeta.load(A), cmeta.groups()) == (None, [B])

    run(main)


def test_deleted_file_stays_deleted_across_power_failures():
    """Else the next start would find metadata of a replica whose superblock is removed."""

    async def main(loop):
        for seed in range(20):
            machine = Machine(loop, seed)
            cmeta = ConsensusMetadata(machine.files(), "/d")
            cmeta.save(A, vote(1), CONFIG)
            cmeta.delete(A)
            machine.disk.crash()
            assert ConsensusMetadata(machine.files(), "/d").groups() == []

    run(main)


def test_crash_during_save_leaves_old_or_new_vote():
    seen = set()

    async def main(loop):
        for seed in range(60):
            machine = Machine(loop, seed)
            ConsensusMetadata(machine.files(), "/d").save(A, vote(1), CONFIG)
            machine.disk.die_after(1 + seed % 5)

            async def save(files, tasks):
                ConsensusMetadata(files, "/d").save(A, vote(2, UUID), CONFIG)

            finished = await machine.live(save)
            machine.disk.crash()
            cmeta = ConsensusMetadata(machine.files(), "/d")
            assert cmeta.groups() == [A]
            found = cmeta.load(A)
            assert found is not None
            assert found[0].term == 2 or not finished
            seen.add(found[0].term)

    run(main)
    assert seen == {1, 2}


def test_every_flipped_byte_and_truncation_is_detected():
    data = encode(A, vote(2, UUID), CONFIG)
    for at in range(len(data)):
        with pytest.raises(BadChecksum) as caught:
            decode(A, data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :], "d/cmeta/a")
        assert caught.value.details["path"] == "d/cmeta/a"
        with pytest.raises(BadChecksum):
            decode(A, data[:at], "p")


small = st.integers(0, 1 << 16)


@given(st.lists(st.tuples(st.sampled_from(DISK), *[small] * 4), min_size=1, max_size=3))
def test_disk_faults_leave_saved_content_or_refused_file(damage):
    whole = encode(A, vote(2, UUID), CONFIG)
    data = mutated(
        {"0000000001.wal": whole}, [m for m in damage if m[0] not in ("splice", "field")]
    )
    if data["0000000001.wal"] != whole:
        with pytest.raises(BadChecksum):
            decode(A, data["0000000001.wal"], "p")


@given(st.integers(0, 2000), st.integers(0, 255))
@example(30, 255)
def test_arbitrary_bytes_are_refused_with_nyala_error(at, byte):
    """The checksum is correct, the content is not: by a faulty build, or edited by hand."""
    data = bytearray(encode(A, vote(2, UUID), CONFIG))
    data[20 + at % (len(data) - 20)] = byte
    data[16:20] = crc32c(bytes(data[:16] + data[20:])).to_bytes(4, "little")
    with contextlib.suppress(Corrupt):
        state, config = decode(A, bytes(data), "p")
        assert isinstance(state.term, int)
        assert all(m.uuid for m in config.members)


def test_file_of_another_group_is_refused():
    with pytest.raises(Corrupt, match=f"belongs to group {A}"):
        decode(B, encode(A, vote(1), CONFIG), "p")


def test_newer_cmeta_format_is_refused_by_name(monkeypatch):
    monkeypatch.setattr("nyala.wal.cmeta.VERSION", 2)
    data = encode(A, vote(1), CONFIG)
    monkeypatch.undo()
    with pytest.raises(BadVersion, match=r"p has format version 2, .* reads up to version 1"):
        decode(A, data, "p")


def test_golden_cmeta_file_is_readable():
    data = (GOLDEN / "v1-cmeta").read_bytes()
    assert decode(A, data, "golden") == (HardState(3, UUID), CONFIG)
    assert data == encode(A, HardState(3, UUID), CONFIG)
