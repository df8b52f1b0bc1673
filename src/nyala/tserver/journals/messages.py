"""Steps, pages and tails of journals to and from messages; what comes from outside is checked."""

from nyala.common.errors import InvalidArgument
from nyala.journal import steps
from nyala.journal.keys import KeyValue
from nyala.journal.log import NamedLog
from nyala.journal.reads import ContentPage, Event, InvalidatedEntries, KeyPage, LogPage, TailPage
from nyala.wire.proto import journal_pb2 as pb


def step_from_proto(request: pb.JournalStepRequest | pb.JournalStep) -> steps.Step:
    """Return the step of a message.

    Raises:
        InvalidArgument: an empty condition or change, or one that this build does not know.
    """
    conditions = [_condition(c) for c in request.conditions]
    return steps.Step(conditions, [_change(c) for c in request.changes])


def _condition(sent: pb.JournalCondition) -> steps.Condition:
    match sent.WhichOneof("what"):
        case "log_last":
            return steps.LogLast(sent.log_last.log, sent.log_last.id)
        case "key_version":
            return steps.KeyVersion(sent.key_version.key, sent.key_version.version)
        case "log_created":
            return steps.LogCreated(sent.log_created.log, sent.log_created.id)
        case _:
            raise InvalidArgument(
                "a condition is empty, or of a newer protocol than this server's; upgrade the server"
            )


def _change(sent: pb.JournalChange) -> steps.Change:
    match sent.WhichOneof("what"):
        case "append":
            entry = sent.append
            return steps.Append(entry.log, entry.data, tuple(entry.invalidates))
        case "invalidate":
            return steps.Invalidate(sent.invalidate.log, tuple(sent.invalidate.ids))
        case "set":
            return steps.SetKey(sent.set.key, sent.set.value)
        case "delete_key":
            return steps.DeleteKey(sent.delete_key)
        case "delete_log":
            return steps.DeleteLog(sent.delete_log)
        case _:
            raise InvalidArgument(
                "a change is empty, or of a newer protocol than this server's; upgrade the server"
            )


def result_to_proto(result: steps.Result) -> pb.JournalStepResponse:
    """Return the message of a step's result."""
    match result:
        case steps.Done(ids=ids):
            return pb.JournalStepResponse(done=pb.StepDone(ids=ids))
        case steps.Failed(condition=condition, actual=actual):
            return pb.JournalStepResponse(failed=pb.StepFailed(condition=condition, actual=actual))
        case steps.Full(bytes=size, limit_bytes=limit):
            return pb.JournalStepResponse(full=pb.StepFull(bytes=size, limit_bytes=limit))


def log_page_to_proto(page: LogPage) -> pb.LogPage:
    """Return the message of a page of entries."""
    entries = [pb.JournalEntry(id=i, data=data) for i, data in page.entries]
    return pb.LogPage(created=page.created, last=page.last, entries=entries, more=page.more)


def key_page_to_proto(page: KeyPage) -> pb.KeyPage:
    """Return the message of a page of keys."""
    return pb.KeyPage(keys=[key_to_proto(k) for k in page.keys], more=page.more)


def key_to_proto(key: KeyValue) -> pb.JournalKey:
    """Return the message of a key."""
    return pb.JournalKey(key=key.key, version=key.version, value=key.value)


def log_to_proto(log: NamedLog) -> pb.JournalLog:
    """Return the message that describes a log."""
    return pb.JournalLog(
        name=log.name,
        created=log.created,
        last=log.last,
        entries=len(log.entries),
        bytes=log.entries.data_bytes,
    )


def content_to_proto(page: ContentPage) -> pb.ContentPage:
    """Return the message of a page of logs with their entries."""
    return pb.ContentPage(
        logs=[
            pb.LogContent(
                log=log_to_proto(log),
                entries=[pb.JournalEntry(id=i, data=data) for i, data in entries],
            )
            for log, entries in page.logs
        ],
        more=page.more,
    )


def tail_to_proto(page: TailPage) -> pb.JournalTailResponse:
    """Return the message of a page of a tail."""
    return pb.JournalTailResponse(
        rebased=page.rebased,
        events=[_event(e) for e in page.events],
        through=page.through,
        created=page.created,
        more=page.more,
    )


def _event(event: Event) -> pb.TailEvent:
    match event:
        case InvalidatedEntries(id=change, ids=ids):
            return pb.TailEvent(invalidated=pb.EntriesInvalidated(id=change, ids=ids))
        case KeyValue():
            return pb.TailEvent(set=key_to_proto(event))
        case (entry_id, data):
            return pb.TailEvent(entry=pb.JournalEntry(id=entry_id, data=data))
        case _:
            return pb.TailEvent(deleted=pb.KeyDeleted(id=event.id, key=event.key))
