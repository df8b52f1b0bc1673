"""`nyala local_replica unsafe_recover`: a LOST replica becomes the only member of its group."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from nyala.common.ids import OpId
from nyala.env.files import SystemFiles
from nyala.offline import inspection
from nyala.raft.messages import HardState
from nyala.raft.reconfiguration.unsafe_recovery import TERM_GAP
from nyala.replica.state_machine import FlushPoint
from nyala.replica.superblock import ReplicaStage, Superblocks
from nyala.replica.witness import Witness
from nyala.wal.cmeta import ConsensusMetadata
from tests.unit.cli.support import cli_recover
from tests.unit.cli.support.cli_recover import GROUP, U1, U2, U3, U4, config, logged, stage
from tests.unit.cli.support.verbs import nyala

pytestmark = pytest.mark.usefixtures("held")
folder = cli_recover.folder


def lose_log(folder):
    shutil.rmtree(folder / "wal")


def recover(folder, *words, answer=""):
    return nyala("local_replica", "unsafe_recover", GROUP, "--dir", folder, *words, answer=answer)


def now(folder):
    """Return stage, term, configuration, and last op id."""
    files, directory = SystemFiles(), str(folder)
    superblock = Superblocks(files, directory).load(GROUP)
    saved = ConsensusMetadata(files, directory).load(GROUP)
    assert superblock is not None
    assert saved is not None
    return superblock.stage, saved[0], saved[1], inspection.logged(files, directory, GROUP).last


def everything(folder):
    return {p: p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.mark.parametrize("noted", [True, False])
def test_replica_with_lost_log_is_recovered_alone_from_files(folder, noted):
    """With and without a start of the server since, which records the loss."""
    lose_log(folder)
    if noted:
        stage(folder, ReplicaStage.LOST)
        (folder / "wal.extent").unlink()
    status, stdout, stderr = recover(folder, "--yes", "--format", "json")
    assert status == 0, stderr
    expected = json.loads(stdout)
    assert (expected["rows"], expected["files"], expected["last"], expected["removed"]) == (
        30, "1.3", "1.3", [U2, U3],
    )  # fmt: skip
    assert os.path.exists(expected["backup"])
    found, hard_state, alone, last = now(folder)
    assert (found, last) == (ReplicaStage.READY, OpId(0, 0))
    assert hard_state == HardState(5 + TERM_GAP), (
        "the new term is above those of the lost members, without a vote"
    )
    assert (alone.voters, alone.lost, alone.id) == ((U1,), (U2, U3, U4), OpId(5 + TERM_GAP, 3))
    held = everything(folder)
    assert "nothing to do: it is the only member" in recover(folder, "--yes")[1]
    assert {p: b for p, b in everything(folder).items() if "clock" not in p.name} == {
        p: b for p, b in held.items() if "clock" not in p.name
    }


def test_loss_is_listed_and_nothing_done_before_confirmation(folder):
    lose_log(folder)
    metadata = ConsensusMetadata(SystemFiles(), str(folder))
    metadata.save(GROUP, HardState(5), config(U1, U2, U3, at=OpId(2, 9)))
    before = now_or_lost(folder)
    for words, answer, status in ((["--dry-run"], "", 0), ([], "n\n", 1), ([], "", 1)):
        code, _, stderr = recover(folder, *words, answer=answer)
        assert code == status
        for expected in (
            f"UNSAFE: the replica of {GROUP} in {folder} becomes the only member of its group",
            "0000000001.wal is missing from the log",
            "its files are intact and have 30 rows, as of entry 1.3",
            "LOST FOR GOOD: every write after entry 1.3, acknowledged or not",
            "entries up to 9 are known to have been committed",
            f"removed: {U2} at a2:1",
            "BUT if another replica works",
        ):
            assert expected in stderr, stderr
        assert now_or_lost(folder) == before
    assert recover(folder, answer="y\n")[0] == 0


def now_or_lost(folder):
    saved = ConsensusMetadata(SystemFiles(), str(folder)).load(GROUP)
    return saved, Superblocks(SystemFiles(), str(folder)).load(GROUP)


def test_log_contiguous_with_files_is_kept(folder):
    stage(folder, ReplicaStage.LOST)
    status, stdout, stderr = recover(folder, "--yes", "--format", "json")
    assert (status, json.loads(stdout)["last"]) == (0, "1.6"), stderr
    assert "its log continues up to entry 1.6" in stderr
    found, hard_state, alone, last = now(folder)
    assert (found, last, alone.id) == (ReplicaStage.READY, OpId(1, 6), OpId(7 + TERM_GAP, 6))
    assert hard_state.term == 7 + TERM_GAP, "the new term is above the log's"


def test_log_not_contiguous_with_files_is_discarded(folder):
    lose_log(folder)
    (folder / "wal.extent").unlink()
    logged(folder, 5, 8)
    stage(folder, ReplicaStage.LOST, lost="its entries are gone")
    status, _, stderr = recover(folder, "--yes")
    assert status == 0, stderr
    assert "reason: its entries are gone" in stderr
    assert now(folder)[3] == OpId(0, 0)


def test_crash_before_superblock_write_leaves_replica_lost_and_command_repeatable(
    folder, monkeypatch
):
    lose_log(folder)
    save = Superblocks.save

    def dies(self, superblock):
        if superblock.stage is ReplicaStage.READY:
            raise OSError(5, "the disk")
        save(self, superblock)

    monkeypatch.setattr(Superblocks, "save", dies)
    assert recover(folder, "--yes")[0] != 0
    assert now(folder)[:2] == (ReplicaStage.LOST, HardState(5 + TERM_GAP))
    monkeypatch.undo()
    monkeypatch.setattr(SystemFiles, "lock", lambda self, path: True)
    assert recover(folder, "--yes")[0] == 0
    assert now(folder)[2].voters == (U1,)


def rot(folder):
    lose_log(folder)
    (file,) = [p for p in (folder / "data" / GROUP).iterdir() if p.name.endswith(".dat")] or [
        max((folder / "data" / GROUP).iterdir(), key=lambda p: p.stat().st_size)
    ]
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 2] ^= 1
    file.write_bytes(bytes(raw))


def as_witness(folder):
    lose_log(folder)
    shutil.rmtree(folder / "data" / GROUP)
    (folder / "data" / GROUP).mkdir()
    Witness.create(SystemFiles(), f"{folder}/data/{GROUP}", FlushPoint())


def lose_file(name):
    def damage(folder):
        lose_log(folder)
        shutil.rmtree(folder / name)

    return damage


def as_other_server(folder):
    lose_log(folder)
    ConsensusMetadata(SystemFiles(), str(folder)).save(GROUP, HardState(5), config(U2, U3))


CANNOT: dict[str, tuple[Callable[[Path], object], str]] = {
    "its log is whole": (lambda folder: logged(folder, 7, 7), "is not LOST: its log is complete"),
    "rotten files": (rot, "damaged"),
    "no files": (lose_file("data"), "has no MANIFEST"),
    "no metadata": (lose_file("cmeta"), "is missing in"),
    "a witness": (as_witness, "is a witness, without rows"),
    "a tombstone": (
        lambda folder: stage(folder, ReplicaStage.TOMBSTONED),
        "TOMBSTONED: it has no files",
    ),
    "no member": (as_other_server, "is no member in the configuration of 1.2"),
    "no replica": (lose_file("superblock"), "has no replica of"),
    "no directory": (shutil.rmtree, "is no server's data directory"),
}


@pytest.mark.parametrize("what", list(CANNOT))
def test_unrecoverable_replica_is_refused_by_name_without_changes(folder, what):
    damage, why = CANNOT[what]
    damage(folder)
    before = everything(folder)
    status, stdout, stderr = recover(folder, "--yes")
    assert (status != 0, stdout, why in stderr) == (True, "", True), stderr
    assert "Traceback" not in stderr
    after = everything(folder)
    for path in (*before, *after):
        assert path.name == "hybrid_clock" or before.get(path) == after.get(path), path
