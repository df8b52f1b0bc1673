"""`nyala wal dump`: output and exit status for golden and damaged files."""

import asyncio
import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from nyala.cli.main import app
from nyala.common.ids import OpId
from nyala.env.files import SystemFiles
from nyala.env.tasks import LoopTasks
from nyala.raft.membership import Configuration, Member
from nyala.wal.cmeta import ConsensusMetadata
from nyala.wal.dump import dump_log
from nyala.wal.segments.format import RECORD_HEADER_BYTES
from tests.unit.wal.support.wal_harness import UUID, A, B, durable, entry, open_wal, vote

GOLDEN = Path(__file__).parents[3] / "golden" / "wal"
FIRST, SECOND = "0000000001.wal", "0000000002.wal"

SEALED = """\
1 segment, 7 records of 2 groups; it was durable up to segment 7, offset 651

{path}: segment 7 of server abababababababababababababababab, \
sealed at 2026-01-01 00:00:00.000000 UTC: 1,007 bytes, index of 6 rows
    offset     bytes  what       group                               term.index  what it says
        48       112  HARD_STATE 00000000000000000000000000000001             3  \
vote for abababababababababababababababab
       160        80  NOOP       00000000000000000000000000000001           3.1  \
1970-01-01 00:00:00.000000+10  0 bytes
       240        82  CONFIG     00000000000000000000000000000002           1.5  \
1970-01-01 00:00:00.000000+11  no members
       322        89  OPERATION  00000000000000000000000000000001           3.2  \
2041-05-10 11:56:53.685247+4095  9 bytes
                           0  00 ff 70 61 79 6c 6f 61 64                       ..payload
       411        80  MARKER                                                     \
all was durable up to 7+48
       491        80  HARD_STATE 00000000000000000000000000000002             2  no vote
       571        80  FORGET     00000000000000000000000000000002                \
all earlier records of the group are void
"""


def dump(*arguments):
    """Return (exit status, output)."""
    done = CliRunner().invoke(app, ["wal", "dump", *map(str, arguments)])
    return done.exit_code, done.output


@pytest.fixture
def folder(tmp_path):
    """A data directory whose server was killed: two segments, the second one open."""

    async def main():
        tasks = LoopTasks()
        for last in (2, 4):
            wal, _ = await open_wal(SystemFiles(), tasks, directory=str(tmp_path))
            await durable(wal, A, [entry(last - 1, b"of A")], vote(last))
            await durable(wal, B, [entry(last // 2, b"of B")])
            await durable(wal, A, [entry(last, b"the last")])
            if last == 2:
                await wal.close()
        await tasks.close()

    asyncio.run(main())
    config = Configuration((Member(UUID, "127.0.0.1:9050", "127.0.0.1:7050"),), OpId(2, 17))
    ConsensusMetadata(SystemFiles(), str(tmp_path)).save(A, vote(3, UUID), config)
    return tmp_path


def flip(path, word, shift=0):
    data = bytearray(path.read_bytes())
    at = data.index(word) + shift
    data[at] ^= 1
    path.write_bytes(bytes(data))
    return data.index(word[1:]) - 1 - RECORD_HEADER_BYTES if shift == 0 else at


def test_golden_segment_is_printed_record_by_record():
    status, text = dump(GOLDEN / "v1-sealed.wal", "--payloads")
    assert (status, text) == (0, SEALED.format(path=GOLDEN / "v1-sealed.wal"))


def test_json_output_equals_text_output():
    status, text = dump(GOLDEN / "v1-open.wal", "--format", "json", "--payloads")
    found = json.loads(text)
    (segment,) = found["segments"]
    assert (status, found["damaged"], segment["sealed"]) == (0, False, False)
    assert (segment["server"], segment["segment"]) == (UUID, 7)
    assert [r["kind"] for r in segment["records"]] == [
        "HARD_STATE", "NOOP", "CONFIG", "OPERATION", "MARKER", "HARD_STATE", "FORGET",
    ]  # fmt: skip
    assert segment["records"][0]["vote"] == UUID
    assert bytes.fromhex(segment["records"][3]["payload"]) == b"\x00\xffpayload"
    assert segment["problems"] == []


def test_consensus_metadata_is_printed_too():
    status, text = dump(GOLDEN / "v1-cmeta")
    assert status == 0
    assert "term 3, vote for abab" in text
    assert "committed configuration 2.17" in text
    assert f"{'cd' * 16} non-voter promote witness" in text


def test_dump_prints_all_segments_and_changes_nothing(folder):
    before = {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in folder.rglob("*") if p.is_file()}
    status, text = dump(folder)
    assert status == 0
    assert "2 segments, 8 records of 2 groups" in text
    assert "sealed" in text
    assert "open: " in text
    assert "committed configuration 2.17" in text
    assert before == {
        p: (p.read_bytes(), p.stat().st_mtime_ns) for p in folder.rglob("*") if p.is_file()
    }


def test_wal_dump_filters_by_group(folder):
    status, text = dump(folder / "wal", "--group", B)
    assert status == 0
    assert (text.count(B), text.count(A)) == (2, 0)


def test_damaged_payload_is_reported_for_its_group(folder):
    at = flip(folder / "wal" / SECOND, b"of B")
    status, text = dump(folder)
    assert status == 1
    assert (
        f"{at:>10} {RECORD_HEADER_BYTES + 4:>9}  DAMAGE: the checksum of the payload of entry 1.2 "
        f"(4 bytes) is wrong; lost for {B}\n"
    ) in text
    assert text.count("\n       ") >= 7  # all others are still shown
    status, text = dump(folder / "wal" / SECOND, "--format", "json")
    assert status == 1
    (segment,) = json.loads(text.replace("nyala: damage was found\n", ""))["segments"]
    (problem,) = segment["problems"]
    assert (problem["offset"], problem["finding"], problem["groups"]) == (at, "damage", [B])


def test_damaged_header_in_open_segment_may_belong_to_any_group(folder):
    flip(folder / "wal" / SECOND, b"of B", shift=-1)
    status, text = dump(folder)
    assert status == 1
    assert "the checksum of a record header is wrong; the affected groups are unknown" in text


def test_damaged_header_in_sealed_segment_is_attributed_by_index(folder):
    flip(folder / "wal" / FIRST, b"of B", shift=-1)
    status, text = dump(folder / "wal" / FIRST)  # the others are read for the verdict
    assert status == 1
    assert f"a record header is wrong; lost for {B}" in text
    assert f"{SECOND}: segment" not in text


def test_torn_tail_is_not_damage(folder):
    path = folder / "wal" / SECOND
    data = path.read_bytes()
    at = data.index(b"the last") - RECORD_HEADER_BYTES
    for torn, check in (
        (data[: at + 85], "the file ends inside the payload of entry 1.4 (8 bytes)"),
        (data[: at + 30], "the file ends within a record header"),
        (data[:at] + b"\xee" * 99, "no record begins here: its magic is missing"),
    ):
        path.write_bytes(torn)
        status, text = dump(folder)
        assert status == 0
        assert f"{at:>10} {len(torn) - at:>9}  TORN TAIL: {check}; the log ends here" in text


def test_records_behind_torn_tail_are_ignored(tmp_path):
    async def main():
        tasks = LoopTasks()
        wal, _ = await open_wal(SystemFiles(), tasks, directory=str(tmp_path))
        slot = wal.reserve(A, [entry(1, b"torn"), entry(2, b"whole")], None)
        wal.append_async(slot, lambda err: None)
        await durable(wal, B, [])
        await tasks.close()

    asyncio.run(main())
    flip(tmp_path / "wal" / FIRST, b"torn")
    status, text = dump(tmp_path)
    assert status == 0
    assert "NOT PART OF THE LOG: entry 1.2 (5 bytes) follows the torn tail" in text


def test_missing_segments_footers_and_headers_are_named(folder):
    wal = folder / "wal"
    whole = (wal / FIRST).read_bytes()
    (wal / FIRST).write_bytes(whole[: whole.index(b"the last") + 8])
    status, text = dump(wal / FIRST)  # decided by the later segments
    assert status == 1
    assert "DAMAGE: the footer is missing, although the log continues after it" in text
    (wal / FIRST).write_bytes(b"\0" + whole[1:])
    assert "magic or the checksum of the segment header" in dump(folder)[1]
    (wal / FIRST).write_bytes(whole[:-1] + b"\0")
    assert "the trailer after the footer is wrong; no group's record is lost" in dump(folder)[1]
    (wal / FIRST).write_bytes(whole)
    (wal / SECOND).rename(wal / "0000000004.wal")
    status, text = dump(folder)
    assert status == 1
    assert "the segments 2..3 before it are missing" in text
    assert "the header has segment number 2, the name 4" in text


def test_segment_of_other_server_and_missing_segments_are_reported(folder):
    other = (GOLDEN / "v1-open.wal").read_bytes()
    (folder / "wal" / "0000000007.wal").write_bytes(other.replace(b"\xab" * 16, b"\xcd" * 16))
    assert dump(folder)[0] == 1
    (folder / "wal" / "0000000007.wal").write_bytes(other)
    assert "segments 3..6 before it are missing" in dump(folder)[1]


def test_blank_and_unfinished_segments_are_not_damage(folder):
    (folder / "wal" / "0000000003.wal").write_bytes(bytes(5000))
    (folder / "wal" / "0000000004.wal.new").write_bytes(bytes(5000))
    status, text = dump(folder)
    assert status == 0
    assert "NOT PART OF THE LOG: no record was ever written to it" in text
    assert "0000000004.wal.new is being prepared" in text


def test_damaged_consensus_metadata_is_damage(folder):
    path = folder / "cmeta" / A
    path.write_bytes(path.read_bytes()[:-1])
    status, text = dump(folder)
    assert status == 1
    assert f"{path}: the consensus metadata is damaged" in text
    path.unlink()
    (folder / "cmeta" / B).write_bytes((GOLDEN / "v1-cmeta").read_bytes())
    assert f"belongs to group {A}" in dump(folder / "cmeta")[1]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("nothing", None, "No such file"),
        ("notes.txt", b"hello", "is not a log segment"),
        ("empty", "dir", "holds neither a log nor consensus metadata"),
    ],
)
def test_unreadable_files_exit_with_status_2(tmp_path, name, content, message):
    if content == "dir":
        (tmp_path / name).mkdir()
    elif content is not None:
        (tmp_path / name).write_bytes(content)
    status, text = dump(tmp_path / name)
    assert status == 2
    assert message in text
    assert "Traceback" not in text


def test_moved_entries_are_marked():
    status, text = dump(GOLDEN / "v2-sealed.wal")
    assert status == 0
    moved = [line.split() for line in text.splitlines() if " MOVED " in line]
    assert [line[4] for line in moved] == ["3.1", "3.2"]


def test_newer_format_and_invalid_group_exit_with_status_2(tmp_path, monkeypatch):
    monkeypatch.setattr("nyala.wal.segments.format.READABLE", (0,))
    monkeypatch.setattr("nyala.wal.segments.format.VERSION", 0)
    status, text = dump(GOLDEN / "v1-open.wal")
    assert status == 2
    assert "has format version 1, and this build" in text
    assert "reads up to version 0: a newer build wrote it" in text
    assert dump(GOLDEN, "--group", "tablet-1")[0] == 2


def test_wal_dump_runs_beside_active_server(tmp_path):
    """Under concurrent writes, each dump shows the log as it was at some time."""

    async def main():
        tasks = LoopTasks()
        wal, _ = await open_wal(SystemFiles(), tasks, directory=str(tmp_path), segment_bytes=4000)
        index = dumps = 0
        folder = str(tmp_path / "wal")
        while (dumps < 20 or not wal.stats().collected) and index < 5000:
            dumping = asyncio.ensure_future(asyncio.to_thread(dump_log, SystemFiles(), folder))
            while not dumping.done():
                index += 1
                await durable(wal, A, [entry(index, os.urandom(200))])
                if index % 30 == 0:
                    wal.set_anchor(A, index - 20)
                    await wal.collect()
            log = await dumping
            dumps += 1
            assert not log.damaged, log
        assert wal.stats().collected > 0
        await wal.close()
        await tasks.close()

    asyncio.run(main())
