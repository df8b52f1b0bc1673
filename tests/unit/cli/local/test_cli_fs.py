"""`nyala fs ...`: directories are formatted once, with a new uuid or a dead server's, and checked."""

import json
import os

import pytest

from nyala.common.ids import OpId, ServerUuid, TabletId
from nyala.env.files import SystemFiles
from nyala.raft.membership import Configuration, Member
from nyala.raft.messages import HardState
from nyala.replica.superblock import ReplicaStage, Superblock, Superblocks
from nyala.wal.cmeta import ConsensusMetadata
from tests.unit.cli.support.verbs import fs

pytestmark = pytest.mark.usefixtures("held")

U1, GROUP = ServerUuid("1" * 32), TabletId("a" * 32)


@pytest.mark.row("S2.19", "S2.20")
def test_format_creates_server_directory_and_prints_only_uuid(tmp_path):
    status, stdout, _ = fs("format", "--dir", tmp_path / "a", "--role", "master")
    again, second, _ = fs("format", "--dir", tmp_path / "b", "--role", "master")
    assert (status, again) == (0, 0)
    assert stdout != second
    assert fs("dump", "uuid", "--dir", tmp_path / "a") == (0, stdout, "")
    assert len(stdout.strip()) == 32


@pytest.mark.row("S2.12")
def test_format_reuses_uuid_of_dead_server(tmp_path):
    words = (
        "format",
        "--dir",
        tmp_path / "a",
        "--role",
        "tserver",
        "--uuid",
        U1,
        "--format",
        "json",
    )
    first, second = fs(*words), fs(*words)
    assert json.loads(first[1]) == {
        "dir": str(tmp_path / "a"), "role": "tserver", "uuid": U1, "changed": True,
    }  # fmt: skip
    assert (second[0], json.loads(second[1])["changed"]) == (0, False)
    assert "was already the data directory of the tserver" in second[2]


@pytest.mark.parametrize(
    ("prepare", "why"),
    [
        (lambda d: (d / "thesis.txt").write_text("years of work"), "holds thesis.txt"),
        (lambda d: fs("format", "--dir", d, "--role", "tserver"), "holds the tserver"),
    ],
)
@pytest.mark.row("S2.19")
def test_non_empty_directory_is_not_formatted(tmp_path, prepare, why):
    prepare(tmp_path)
    before = {n: (tmp_path / n).read_bytes() for n in os.listdir(tmp_path)}
    status, stdout, stderr = fs("format", "--dir", tmp_path, "--role", "master")
    assert (status, stdout) == (2, "")
    assert why in stderr
    assert {n: (tmp_path / n).read_bytes() for n in os.listdir(tmp_path)} == before


def test_invalid_uuid_is_refused(tmp_path):
    status, _, stderr = fs("format", "--dir", tmp_path / "a", "--role", "master", "--uuid", "XY")
    assert (status, "32 lower-case hex digits" in stderr) == (2, True)
    assert not (tmp_path / "a").exists()
    assert fs("dump", "uuid", "--dir", tmp_path)[0] == 5


def test_check_reports_every_problem_of_a_directory(tmp_path, held):
    directory = str(tmp_path)
    fs("format", "--dir", tmp_path, "--role", "tserver", "--uuid", U1)
    assert fs("check", "--dir", tmp_path)[::2] == (0, "")
    files = SystemFiles()
    superblocks, metadata = Superblocks(files, directory), ConsensusMetadata(files, directory)
    for number, stage in enumerate((ReplicaStage.READY, ReplicaStage.COPYING, ReplicaStage.READY)):
        superblocks.save(Superblock(TabletId(f"{number:032x}"), stage))
    config = Configuration((Member(U1, "127.0.0.1:1", "127.0.0.1:2"),), OpId(1, 1))
    metadata.save(TabletId(f"{2:032x}"), HardState(1), config)
    (tmp_path / "cmeta" / f"{2:032x}").write_bytes(b"not that")
    (tmp_path / "data" / GROUP).mkdir(parents=True)
    status, stdout, _ = fs("check", "--dir", tmp_path, "--format", "json")
    problems = json.loads(stdout)["problems"]
    assert status == 1
    for group, what in ((0, "has no consensus metadata"), (1, "broken off"), (2, "is damaged")):
        assert any(f"{group:032x}" in p and what in p for p in problems), problems
    assert any(GROUP in p and "no replica" in p for p in problems)
    held.add(f"{directory}/lock")
    status, _, stderr = fs("check", "--dir", tmp_path)
    assert (status, "stop that server first" in stderr) == (4, True)
