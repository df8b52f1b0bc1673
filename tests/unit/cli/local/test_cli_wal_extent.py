"""`nyala wal dump` and `nyala fs check` list the required segments, and report missing ones."""

import asyncio
import json

import pytest

from nyala.common.errors import LogGap
from nyala.datadir.instance import format_instance
from nyala.env.clock import write_ceiling
from nyala.env.files import SystemFiles
from nyala.env.tasks import LoopTasks
from nyala.offline import inspection
from nyala.raft.membership import Configuration
from nyala.wal.cmeta import ConsensusMetadata
from nyala.wal.dump import dump_log
from nyala.wal.segments.extent import FILE_NAME
from tests.unit.cli.support.verbs import nyala
from tests.unit.wal.support.wal_harness import UUID, A, durable, entry, open_wal, vote

pytestmark = pytest.mark.usefixtures("held")

END = 308
"""Return the end of the records of each segment, which its footer follows."""
NAMES = [f"{n:010d}.wal" for n in range(1, 5)]


@pytest.fixture
def folder(tmp_path):
    """The directory of a server that was stopped four times: four segments."""
    format_instance(SystemFiles(), str(tmp_path), "tserver", UUID, replaces=False)
    write_ceiling(SystemFiles(), f"{tmp_path}/hybrid_clock", 1 << 20)

    async def main():
        tasks = LoopTasks()
        for number in range(1, 5):
            wal, _ = await open_wal(SystemFiles(), tasks, directory=str(tmp_path))
            await durable(wal, A, [entry(number, bytes(100))], vote(number))
            await wal.close()
        await tasks.close()

    asyncio.run(main())
    ConsensusMetadata(SystemFiles(), str(tmp_path)).save(A, vote(4), Configuration(()))
    return tmp_path


def checked(folder):
    status, text, _ = nyala("fs", "check", "--dir", folder, "--format", "json")
    return status, json.loads(text)["problems"]


def test_extent_record_is_shown_and_complete_log_is_reported(folder):
    for path in (folder, folder / "wal", folder / "wal" / NAMES[0]):
        status, text, _ = nyala("wal", "dump", path)
        assert status == 0
        assert (
            f"{folder}/{FILE_NAME}: {NAMES[0]} to {NAMES[3]} have to exist, up to offset {END} of "
            "the last one\n" in text
        )
    shown = json.loads(nyala("wal", "dump", folder, "--format", "json")[1])["extent"]
    assert (shown["first"], shown["last"], shown["missing"], shown["damaged"]) == (1, 4, "", False)
    assert checked(folder) == (0, [])


@pytest.mark.row("A17")
@pytest.mark.parametrize(
    ("removed", "message"),
    [
        ([0], f"{NAMES[0]} is missing"),
        ([3], f"{NAMES[3]} is missing"),
        ([0, 1, 3], f"{NAMES[0]} to {NAMES[1]}, {NAMES[3]} are missing"),
        ([0, 1, 2, 3], f"{NAMES[0]} to {NAMES[3]} are missing"),
    ],
)
def test_missing_segments_are_named(folder, removed, message):
    for number in removed:
        (folder / "wal" / NAMES[number]).unlink()
    for path in (folder, folder / "wal"):
        status, text, _ = nyala("wal", "dump", path)
        assert status == 1
        assert text.count(f"DAMAGE: {message} from the log; every group") == 1
    shown = json.loads(nyala("wal", "dump", folder, "--format", "json")[1])
    assert (shown["damaged"], shown["extent"]["missing"]) == (True, f"{message} from the log")
    status, problems = checked(folder)
    assert status == 1
    assert [p for p in problems if f"{folder}/wal: {message} from the log; replicas" in p]
    with pytest.raises(LogGap, match="missing from the log: replace this replica"):
        inspection.stopped_replica(SystemFiles(), str(folder), A)


def test_lost_log_directory_is_reported_from_extent_record(folder):
    for name in NAMES:
        (folder / "wal" / name).unlink()
    (folder / "wal").rmdir()
    status, text, _ = nyala("wal", "dump", folder)
    assert status == 1
    assert f"DAMAGE: {NAMES[0]} to {NAMES[3]} are missing from the log" in text


def test_truncated_last_segment_is_reported_with_both_lengths(folder):
    last = folder / "wal" / NAMES[-1]
    for kept in (300, 100):
        with open(last, "r+b") as file:
            file.truncate(kept)
        message = f"the file was cut short: it has {kept} bytes, and was durable up to offset {END}"
        status, text, _ = nyala("wal", "dump", last)
        assert status == 1
        assert f"DAMAGE: {message} ({FILE_NAME})" in text
        assert any(p.startswith(f"{last} at ") and message in p for p in checked(folder)[1])


@pytest.mark.parametrize("rotten", [b"", b"not that", None])
def test_damaged_or_missing_extent_record_is_reported(folder, rotten):
    note = folder / FILE_NAME
    if rotten is None:
        note.unlink()
    else:
        note.write_bytes(rotten)
    status, text, _ = nyala("wal", "dump", folder)
    assert (status, checked(folder)[0]) == ((0, 0) if rotten is None else (1, 1))
    what = "does not exist" if rotten is None else "is damaged"
    assert f"{note}: {what}: the expected segments are unknown" in text


def test_segments_created_or_removed_during_read_are_not_reported_missing(folder):
    """A running server concurrently collects the oldest segments and creates new ones."""
    directory, before = str(folder), (folder / FILE_NAME).read_bytes()

    async def more():
        tasks = LoopTasks()
        for number in (5, 6):
            wal, _ = await open_wal(SystemFiles(), tasks, directory=directory)
            await durable(wal, A, [entry(number, bytes(100))], vote(number))
            wal.set_anchor(A, number)
            await wal.collect()
            await wal.close()
        await tasks.close()

    class Moving(SystemFiles):
        def list(self, path: str) -> list[str]:
            names = super().list(path)
            if path.endswith("/wal"):
                asyncio.run(more())
            return names

    found = dump_log(Moving(), f"{directory}/wal", data_dir=directory)
    assert (found.missing, found.damaged) == ("", False)
    assert (folder / FILE_NAME).read_bytes() != before
    assert not (folder / "wal" / NAMES[0]).exists()
