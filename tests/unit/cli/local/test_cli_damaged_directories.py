"""Directories of stopped servers with missing, damaged or foreign files: each is reported."""

import json
import shutil

import pytest

from nyala.datadir.instance import format_instance
from nyala.env.files import SystemFiles
from nyala.replica.superblock import ReplicaStage
from tests.unit.cli.support import cli_recover
from tests.unit.cli.support.cli_recover import GROUP, U1, U2, stage
from tests.unit.cli.support.verbs import nyala

pytestmark = pytest.mark.usefixtures("held")
folder = cli_recover.folder


def checked(directory):
    status, stdout, _ = nyala("fs", "check", "--dir", directory, "--format", "json")
    return status, json.loads(stdout)["problems"]


def rotten(name):
    return lambda folder: (folder / name).write_bytes(b"rotten")


def of_another(folder):
    """Format a new identity, as after a copy of the other files."""
    (folder / "instance").unlink()
    other = folder.parent / "other"
    format_instance(SystemFiles(), str(other), "tserver", U2, replaces=False)
    shutil.copy(other / "instance", folder / "instance")


MANIFESTS = ("MANIFEST", "JOURNAL")


def rotten_manifest(folder):
    data = folder / "data" / GROUP
    next(p for p in data.iterdir() if p.name in MANIFESTS).write_bytes(b"rotten")


def a_file_less(folder):
    data = folder / "data" / GROUP
    next(p for p in sorted(data.iterdir()) if p.name not in MANIFESTS).unlink()


ROT = {
    "lost clock": (lambda folder: (folder / "hybrid_clock").unlink(), "hybrid_clock is missing"),
    "clock": (rotten("hybrid_clock"), "does not hold a hybrid clock ceiling"),
    "manifest": (rotten_manifest, f"{GROUP}: "),
    "a file of the tablet": (a_file_less, " names"),
    "superblock": (rotten(f"superblock/{GROUP}"), "is not a superblock"),
    "another server's log": (of_another, f"was written by server {U1}"),
}


@pytest.mark.parametrize("what", list(ROT))
def test_directory_check_reports_problems_that_prevent_start(folder, what):
    harm, why = ROT[what]
    assert checked(folder) == (0, [])
    harm(folder)
    status, problems = checked(folder)
    assert status == 1
    assert [p for p in problems if why in p], problems


@pytest.mark.parametrize("verb", ["rewrite_raft_config", "set_term"])
@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        (ReplicaStage.LOST, "stays FAILED whatever its metadata say"),
        (ReplicaStage.TOMBSTONED, "is TOMBSTONED: there is no replica"),
        (None, "is not a superblock"),
    ],
)
def test_metadata_that_server_would_refuse_are_not_rewritten(folder, verb, wanted, why):
    if wanted is None:
        rotten(f"superblock/{GROUP}")(folder)
    else:
        stage(folder, wanted)
    before = (folder / "cmeta" / GROUP).read_bytes()
    what = U1 if verb == "rewrite_raft_config" else "99"
    status, stdout, stderr = nyala("local_replica", "cmeta", verb, GROUP, what, "--dir", folder)
    assert (status != 0, stdout, why in stderr) == (True, "", True), stderr
    assert (folder / "cmeta" / GROUP).read_bytes() == before


VERBS = [
    ("fs", "check"),
    ("fs", "dump", "uuid"),
    ("fs", "lower_clock"),
    ("local_replica", "list"),
    ("local_replica", "delete", GROUP),
    ("local_replica", "unsafe_recover", GROUP),
    ("local_replica", "cmeta", "print_replica_uuids", GROUP),
    ("local_replica", "cmeta", "rewrite_raft_config", GROUP, U1),
    ("local_replica", "cmeta", "set_term", GROUP, "99"),
]


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_foreign_directory_is_refused_by_name_without_changes(tmp_path, verb):
    missing, empty = tmp_path / "nowhere", tmp_path / "empty"
    empty.mkdir()
    for path, why in ((missing, "there is no such folder"), (empty, "it has no instance file")):
        status, stdout, stderr = nyala(*verb, "--dir", path)
        assert (status, stdout) == (5, "")
        assert f"{path} is no server's data directory: {why}" in stderr
    assert not missing.exists()
    assert list(empty.iterdir()) == []
