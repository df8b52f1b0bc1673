"""A wheel that root has installed, read-only, is used by several users at a time."""

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.unit.testing.installation import install, run
from tests.unit.testing.other_users import NOBODY, as_user, needs_root
from tests.waiting import within

USE = """
import os, nyala
with nyala.connect(os.environ["MASTERS"]) as client:
    table = client.create_table("t", [{"k": 1, "v": "text"}], ["k"], replicas=1)
    table.upsert([{"k": k, "v": str(os.geteuid())} for k in range(1000)])
    print(client.sql("select count(*) as n, min(v) as v from t").to_pylist())
"""


@dataclass
class User:
    """A user of the installation.

    Attributes:
        uid: of the user.
        folder: that belongs to the user.
        environment: of the user's commands.
        base: base port of the user's cluster.
    """

    uid: int
    folder: Path
    environment: dict[str, str]
    base: int

    def filled(self, word: str) -> str:
        """Return a word of a command with the user's folder and base port."""
        return word.replace("{own}", str(self.folder)).replace("{base}", str(self.base))

    def start(self, *words: str) -> "subprocess.Popen[str]":
        """Start a command, from a folder that the user cannot write to."""
        return subprocess.Popen(
            [*as_user(self.uid), *words], env=self.environment, cwd="/", text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a virtual environment with the wheel, which nobody may write to."""
    made = install(tmp_path_factory.mktemp("wheel"))
    for path in (made, *made.rglob("*")):
        if not path.is_symlink():
            path.chmod(path.stat().st_mode & ~0o222)
    return made


@pytest.fixture
def noexec(tmp_path: Path) -> Iterator[Path]:
    """A temporary folder from which nothing can be executed."""
    place = tmp_path / "noexec"
    place.mkdir()
    run("mount", "-t", "tmpfs", "-o", "noexec,size=64m,mode=1777", "none", str(place))
    yield place
    run("umount", "-l", str(place))


def free_base(*taken: int) -> int:
    """Return a base port whose ports are free; a cluster uses those up to 3,001 above it."""
    for base in range(32_000, 50_000, 4_000):
        with socket.socket() as one:
            if (
                base not in taken
                and one.connect_ex(("127.0.0.1", base))
                and one.connect_ex(("127.0.0.1", base + 1))
            ):
                return base
    raise AssertionError("no free ports")


def files(place: Path) -> dict[str, float]:
    return {str(p): p.lstat().st_mtime for p in place.rglob("*")}


@pytest.mark.full
@pytest.mark.timeout(900)
@needs_root
def test_two_users_run_clusters_at_a_time_with_and_without_a_home(installed, noexec, tmp_path):
    """One has a home; the other has none, `HOME` is not set, and the temporary folder is noexec."""
    command, before, users = installed / "bin" / "nyala", files(installed), list[User]()
    for uid, has_home in ((NOBODY, True), (NOBODY - 1, False)):
        own = tmp_path / str(uid)
        own.mkdir()
        os.chown(own, uid, uid)
        base = free_base(*(u.base for u in users))
        environment = {"PATH": os.environ["PATH"], "MASTERS": f"127.0.0.1:{base + 1}"}
        environment |= {"HOME": str(own)} if has_home else {"TMPDIR": str(noexec)}
        users.append(User(uid, own, environment, base))

    def all_run(*words: str) -> list[str]:
        """Run a command as each user at the same time; return what they print."""
        started = [u.start(*(u.filled(w) for w in words)) for u in users]
        try:
            printed = [one.communicate(timeout=within(400))[0] for one in started]
        finally:
            for one in started:
                if one.poll() is None:
                    os.killpg(one.pid, signal.SIGKILL)
        assert [one.returncode for one in started] == [0, 0], printed
        return printed

    try:
        all_run(
            str(command),
            "up",
            "--dir",
            "{own}/c",
            "--masters",
            "1",
            "--tservers",
            "1",
            "--base-port",
            "{base}",
        )
        printed = all_run(str(installed / "bin" / "python"), "-c", USE)
        for user, text in zip(users, printed, strict=True):
            assert f"'n': 1000, 'v': '{user.uid}'" in text, text
    finally:
        all_run(str(command), "down", "--dir", "{own}/c")
    assert files(installed) == before, "nobody changes the installation"
    kept = [users[0].folder / ".cache", noexec / f"nyala-{users[1].uid}"]
    assert [one.stat().st_uid for one in kept] == [one.uid for one in users]
