"""Writes the golden files of the journal's formats, into the directory named by its argument.

Those of a release are never written again; a new format version gets new files beside them.
"""

import sys
from pathlib import Path
from typing import Any

from nyala.common.ids import CommittedOperation, OpId, TableId, TabletId
from nyala.env.files import SystemFiles
from nyala.journal import steps
from nyala.journal.journal import JournalMachine
from nyala.journal.manifest import JournalInfo
from nyala.replica.member.client_sessions import ClientSessions
from nyala.replica.member.session_header import unwrap, wrap
from nyala.storage.flush_point import StoredFlushPoint
from nyala.wire.proto import journal_pb2 as pb

INFO = JournalInfo(TabletId("ab" * 16), TableId("cd" * 16), "göld", 3, 1 << 30)
CLIENT = b"golden-client-01"
BIG = (1 << 64) - 1
STEP = steps.Step(
    [steps.LogLast("a", 7), steps.KeyVersion("k/é", 0), steps.LogCreated("b", BIG)],
    [
        steps.Append("a", b"\0data\xff", [3, 5]),
        steps.Invalidate("a", [BIG, 1]),
        steps.SetKey("k/é", b"value"),
        steps.DeleteKey("old"),
        steps.DeleteLog("b"),
    ],
)
DEFINITION = steps.Definition(4, "göld 2", 1 << 40)
BATCH = steps.Batch([STEP, steps.Step([], [steps.Append("a", b"2", [])])])
RESULTS: tuple[steps.Result, ...] = (
    steps.Done([7, 0, BIG]),
    steps.Failed(1, BIG),
    steps.Full(1 << 33, 1 << 30),
)
GROUPS: tuple[tuple[tuple[steps.Change, ...], ...], ...] = (
    (
        (steps.Append("a", b"one"), steps.Append("a", b"two")),
        (steps.Append("gone", b"x" * 300), steps.SetKey("k", b"v"), steps.SetKey("old", b"w")),
    ),
    (
        (steps.Append("a", b"three", (10,)), steps.Append("b", b"")),
        (steps.DeleteLog("gone"), steps.DeleteKey("old"), steps.SetKey("k", b"\0new")),
        (steps.Invalidate("b", ()),),
    ),
)
"""Changes of the steps before each flush."""
MESSAGES: dict[str, Any] = {
    "step-request": pb.JournalStepRequest(
        tablet_id=INFO.tablet_id,
        conditions=[
            pb.JournalCondition(log_last=pb.LogId(log="a", id=7)),
            pb.JournalCondition(key_version=pb.KeyVersion(key="k/é", version=0)),
            pb.JournalCondition(log_created=pb.LogId(log="b", id=BIG)),
        ],
        changes=[
            pb.JournalChange(append=pb.AppendEntry(log="a", data=b"\0data\xff", invalidates=[3, 5])),
            pb.JournalChange(invalidate=pb.InvalidateEntries(log="a", ids=[BIG, 1])),
            pb.JournalChange(set=pb.SetKey(key="k/é", value=b"value")),
            pb.JournalChange(delete_key="old"),
            pb.JournalChange(delete_log="b"),
        ],
        client_id=CLIENT, sequence=9, first_outstanding=8, since=100, propagated_time=200, timeout_ms=5000,
    ),
    "steps-request": pb.JournalStepsRequest(
        tablet_id=INFO.tablet_id,
        steps=[
            pb.JournalStep(
                conditions=[pb.JournalCondition(log_last=pb.LogId(log="a", id=7))],
                changes=[pb.JournalChange(delete_log="b")],
            ),
            pb.JournalStep(changes=[pb.JournalChange(delete_key="old")]),
        ],
        client_id=CLIENT, sequence=9, first_outstanding=8, since=100, propagated_time=200, timeout_ms=5000,
    ),
    "steps-response": pb.JournalStepsResponse(
        results=[
            pb.JournalStepResponse(done=pb.StepDone(ids=[7])),
            pb.JournalStepResponse(failed=pb.StepFailed(actual=7)),
        ],
        timestamp=300, duplicate=True,
    ),
    "step-done": pb.JournalStepResponse(
        done=pb.StepDone(ids=[7, 0, BIG]), timestamp=300, duplicate=True
    ),
    "step-failed": pb.JournalStepResponse(
        failed=pb.StepFailed(condition=1, actual=BIG), timestamp=300
    ),
    "step-full": pb.JournalStepResponse(full=pb.StepFull(bytes=1 << 33, limit_bytes=1 << 30)),
    "read-log": pb.JournalReadRequest(
        tablet_id=INFO.tablet_id,
        log=pb.ReadLog(log="a", created=10, after=11, through=BIG, limit=5),
        max_age_ms=1000, least=12, timeout_ms=5000, propagated_time=200,
    ),
    "read-key": pb.JournalReadRequest(tablet_id=INFO.tablet_id, key="k/é"),
    "read-keys": pb.JournalReadRequest(
        tablet_id=INFO.tablet_id, keys=pb.ListKeys(prefix="k/", after="k/a", limit=5)
    ),
    "read-logs": pb.JournalReadRequest(
        tablet_id=INFO.tablet_id, logs=pb.ListLogs(after="a", limit=5)
    ),
    "log-page": pb.JournalReadResponse(
        last=12, at=300,
        log=pb.LogPage(
            created=10, last=12, more=True,
            entries=[pb.JournalEntry(id=11, data=b"\0data\xff"), pb.JournalEntry(id=12)],
        ),
    ),
    "key-page": pb.JournalReadResponse(
        last=12, at=300,
        keys=pb.KeyPage(keys=[pb.JournalKey(key="k/é", version=12, value=b"value")], more=True),
    ),
    "log-list": pb.JournalReadResponse(
        last=12, at=300,
        logs=pb.LogList(
            logs=[pb.JournalLog(name="a", created=10, last=12, entries=2, bytes=6)], more=True
        ),
    ),
    "tail-log": pb.JournalTailRequest(
        request=3, tablet_id=INFO.tablet_id, log="a", created=10, after=11, wait_ms=5000
    ),
    "tail-keys": pb.JournalTailRequest(request=4, tablet_id=INFO.tablet_id, prefix="k/", after=11),
    "tail-events": pb.JournalTailResponse(
        request=3, through=14, created=10,
        events=[
            pb.TailEvent(entry=pb.JournalEntry(id=12, data=b"\0data\xff")),
            pb.TailEvent(invalidated=pb.EntriesInvalidated(id=12, ids=[10, 11])),
            pb.TailEvent(set=pb.JournalKey(key="k/é", version=13, value=b"value")),
            pb.TailEvent(deleted=pb.KeyDeleted(id=14, key="k/é")),
        ],
    ),
    "tail-rebased": pb.JournalTailResponse(request=3, rebased=True, through=14, created=10),
}  # fmt: skip
"""Requests of clients and answers, with every field set in one of them."""


def sessions() -> ClientSessions:
    """Return a session table with one result of each kind."""
    table = ClientSessions()
    for number, result in enumerate(RESULTS, 1):
        header, _ = unwrap(wrap(b"step %d" % number, CLIENT, number, 1, 600))
        _, saved = table.admit(header, number * 4096)
        assert saved is not None
        table.keep(saved, steps.encode_result(result))
    return table


def make(directory: Path) -> None:
    """Write all golden files."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "step-v1.bin").write_bytes(steps.encode_step(STEP))
    (directory / "batch-v1.bin").write_bytes(steps.encode_batch(BATCH))
    (directory / "results-v1.bin").write_bytes(steps.encode_results(RESULTS))
    (directory / "definition-v1.bin").write_bytes(steps.encode_definition(DEFINITION))
    for result in RESULTS:
        name = f"result-{type(result).__name__.lower()}-v1.bin"
        (directory / name).write_bytes(steps.encode_result(result))
    (directory / "sessions-v1.bin").write_bytes(sessions().dump())
    (directory / "messages-v1").mkdir(exist_ok=True)
    for name, message in MESSAGES.items():
        raw = message.SerializeToString(deterministic=True)
        (directory / "messages-v1" / f"{name}.bin").write_bytes(raw)
    place = str(directory / "journal-v1")
    journal = JournalMachine.create(SystemFiles(), place, INFO)
    index = 0
    for group in GROUPS:
        for changes in group:
            index += 1
            payload = steps.encode_step(steps.Step((), changes))
            journal.apply([CommittedOperation(OpId(1, index), 10 * index, payload)])
        build = journal.prepare_flush(
            StoredFlushPoint(OpId(1, index), 10 * index, sessions().dump())
        )
        assert build is not None
        build()()
    journal.close()


if __name__ == "__main__":
    make(Path(sys.argv[1]))
