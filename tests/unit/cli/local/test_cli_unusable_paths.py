"""Offline verbs on a data directory with a path that cannot be used: one clear line, never a raw OSError."""

import errno
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nyala.common.ids import TabletId
from nyala.env.files import SystemFiles
from nyala.replica.superblock import ReplicaStage, Superblock, Superblocks
from tests.unit.cli.support import cli_recover
from tests.unit.cli.support.cli_recover import GROUP, U1
from tests.unit.cli.support.verbs import nyala

pytestmark = pytest.mark.usefixtures("held")
folder = cli_recover.folder

VERBS = {
    "fs check": (),
    "fs dump uuid": (),
    "fs lower_clock": (),
    "fs format": ("--role", "tserver"),
    "local_replica list": (),
    "local_replica delete": (GROUP,),
    "local_replica unsafe_recover": (GROUP, "--yes"),
    "local_replica cmeta print_replica_uuids": (GROUP,),
    "local_replica cmeta rewrite_raft_config": (GROUP, U1),
    "local_replica cmeta set_term": (GROUP, "99"),
    "wal dump": (),
}
PATHS = (
    "", "instance", "cmeta", f"cmeta/{GROUP}", "data", f"data/{GROUP}", "superblock",
    f"superblock/{GROUP}", "wal", "wal/0000000001.wal", "wal.extent",
)  # fmt: skip


def swap(path: Path) -> None:
    """Replace a folder by a file, or a file by a folder."""
    if path.is_dir():
        shutil.rmtree(path)
        path.write_text("a text\n")
    else:
        path.unlink()
        path.mkdir()


def empty(path: Path) -> None:
    """Replace a path by an empty file."""
    if path.is_dir():
        shutil.rmtree(path)
    path.write_bytes(b"")


def run(verb: str, directory: Path) -> tuple[int, str]:
    """Return the exit status of a verb and the last line of standard error."""
    option = () if verb == "wal dump" else ("--dir",)
    status, _, stderr = nyala(*verb.split(), *VERBS[verb], *option, directory)
    assert "Traceback" not in stderr, stderr
    assert "[Errno" not in stderr, stderr
    return status, ["", *stderr.strip().splitlines()][-1]


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("damage", [swap, empty])
def test_path_of_wrong_kind_gives_one_line_error(
    folder: Path,
    tmp_path_factory: pytest.TempPathFactory,
    verb: str,
    damage: Callable[[Path], None],
):
    for name in PATHS:
        directory = tmp_path_factory.mktemp("copy") / "directory"
        shutil.copytree(folder, directory)
        damage(directory / name)
        status, line = run(verb, directory)
        assert status == 0 or line.startswith("nyala: "), (name, line)
        assert ": name a" not in line or ", or move the " in line, (name, line)


@pytest.mark.parametrize("verb", VERBS)
def test_unreadable_path_gives_one_line_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch, verb: str
):
    """The calls are patched to refuse, since root may read everything."""

    def refusing(call: Callable[..., Any]) -> Callable[..., Any]:
        def refuse(self: SystemFiles, path: str, *more: Any, **named: Any) -> Any:
            if path.startswith(str(folder)):
                raise PermissionError(errno.EACCES, "Permission denied", path)
            return call(self, path, *more, **named)

        return refuse

    for name in ("read", "list"):
        monkeypatch.setattr(SystemFiles, name, refusing(getattr(SystemFiles, name)))
    status, line = run(verb, folder)
    assert status in (1, 2)
    assert line.startswith(f"nyala: {folder}")
    assert "Permission denied; this user has no permission: use another folder" in line


def test_file_in_place_of_data_directory_is_reported_as_file(tmp_path: Path):
    (tmp_path / "file").write_text("a text\n")
    status, line = run("fs check", tmp_path / "file")
    assert (status, "it is a file, and not a folder" in line) == (5, True), line


def test_replicas_are_listed_beside_one_whose_files_cannot_be_read(folder: Path):
    swap(folder / "cmeta" / GROUP)
    status, stdout, _ = nyala("local_replica", "list", "--dir", folder, "--format", "json")
    assert status == 0
    assert f"cmeta/{GROUP}: Is a directory" in stdout


def test_deleting_a_replica_prints_one_line_for_another_that_cannot_be_opened(folder: Path):
    other = TabletId("b" * 32)
    Superblocks(SystemFiles(), str(folder)).save(Superblock(other, ReplicaStage.READY))
    status, stdout, stderr = nyala("local_replica", "delete", GROUP, "--dir", folder)
    assert (status, stdout) == (0, "deleted\n"), stderr
    assert "Traceback" not in stderr
    (line,) = [line for line in stderr.splitlines() if other in line]
    assert line.startswith(f"nyala: the replica of {other} failed: "), stderr
