"""Golden files of journals: files and bytes of earlier builds are readable, and today's are the same."""

import shutil
from pathlib import Path

import pytest

from nyala.common.errors import Corrupt
from nyala.env.files import SystemFiles
from nyala.journal import steps
from nyala.journal.journal import JournalMachine
from nyala.replica.member.client_sessions import ClientSessions
from nyala.tserver.journals.messages import step_from_proto
from tests.golden.journal.make_journal_golden import (
    BATCH,
    DEFINITION,
    INFO,
    MESSAGES,
    RESULTS,
    STEP,
    make,
    sessions,
)

GOLDEN = Path(__file__).parents[2] / "golden" / "journal"
FILES = sorted(
    str(path.relative_to(GOLDEN))
    for path in GOLDEN.rglob("*")
    if path.is_file() and path.suffix not in (".py", ".pyc")
)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    directory = tmp_path_factory.mktemp("golden")
    make(directory)
    return directory


def test_golden_journal_reads_the_same(tmp_path):
    directory = tmp_path / "journal"
    shutil.copytree(GOLDEN / "journal-v1", directory)
    journal = JournalMachine.open(SystemFiles(), str(directory))
    assert journal.info == INFO
    assert (journal.flush_point.op.index, journal.flush_point.stamp) == (5, 50)
    assert ClientSessions.load(journal.flush_point.extra).dump() == sessions().dump()
    logs = {
        log.name: (log.created, log.last, list(log.entries.read(0, log.last)))
        for log in journal.state.by_name()
    }
    assert logs == {
        "a": (10, 30, [(11, b"two"), (30, b"three")]),
        "b": (31, 50, [(31, b"")]),
    }
    keys = [(k.key, k.version, k.value) for k in journal.state.keys.starting_with("")]
    assert keys == [("k", 42, b"\0new")]
    assert journal.state.last == 50
    assert journal.state.digest == 3414584001975241452  # replicas of other builds compare it


def test_golden_operations_and_results_decode_the_same():
    assert steps.decode((GOLDEN / "step-v1.bin").read_bytes()) == STEP
    assert steps.decode((GOLDEN / "batch-v1.bin").read_bytes()) == BATCH
    assert steps.decode_results((GOLDEN / "results-v1.bin").read_bytes()) == list(RESULTS)
    assert steps.decode((GOLDEN / "definition-v1.bin").read_bytes()) == DEFINITION
    for result in RESULTS:
        name = f"result-{type(result).__name__.lower()}-v1.bin"
        assert steps.decode_result((GOLDEN / name).read_bytes()) == result
    table = ClientSessions.load((GOLDEN / "sessions-v1.bin").read_bytes())
    assert (len(table), table.clients) == (len(RESULTS), 1)


@pytest.mark.parametrize("name", MESSAGES)
def test_golden_messages_parse_the_same(name):
    raw = (GOLDEN / "messages-v1" / f"{name}.bin").read_bytes()
    assert type(MESSAGES[name]).FromString(raw) == MESSAGES[name]


def test_golden_request_is_replicated_as_golden_step():
    raw = (GOLDEN / "messages-v1" / "step-request.bin").read_bytes()
    step = step_from_proto(type(MESSAGES["step-request"]).FromString(raw))
    assert steps.encode_step(step) == (GOLDEN / "step-v1.bin").read_bytes()


@pytest.mark.parametrize("name", FILES)
def test_bytes_written_equal_golden_file(made, name):
    assert (made / name).read_bytes() == (GOLDEN / name).read_bytes()


def test_every_format_has_a_golden_file(made):
    now = sorted(str(p.relative_to(made)) for p in made.rglob("*") if p.is_file())
    assert now == FILES


def test_unknown_format_version_is_refused_by_name(tmp_path):
    for name in ("JOURNAL", "00000001.jnl"):
        directory = tmp_path / name
        shutil.copytree(GOLDEN / "journal-v1", directory)
        raw = bytearray((directory / name).read_bytes())
        raw[7] ^= 1
        (directory / name).write_bytes(bytes(raw))
        with pytest.raises(Corrupt, match=name):
            JournalMachine.open(SystemFiles(), str(directory))
