"""Answers to reads and tails, from one state of a journal. Lane APPLY."""

from nyala.common.errors import InvalidArgument
from nyala.journal.reads import (
    KeyPage,
    check_least,
    content_page,
    key_page,
    log_page,
    logs_page,
    tail_of_keys,
    tail_of_log,
)
from nyala.journal.state import JournalState
from nyala.tserver.journals import messages
from nyala.wire.proto import journal_pb2 as pb


def read(state: JournalState, request: pb.JournalReadRequest) -> pb.JournalReadResponse:
    """Return the answer to a read.

    Raises:
        Unavailable: this replica has not applied a change that the read asks for.
        LogGone: the log is not the one that the reader knows.
        InvalidArgument: the read names nothing.
    """
    least = request.least
    if request.max_age_ms and request.HasField("log"):
        least = max(least, request.log.created)  # before its creation, the log only seems deleted
    check_least(state, least)
    response = pb.JournalReadResponse(last=state.last)
    match request.WhichOneof("what"):
        case "log":
            wanted = request.log
            page = log_page(
                state, wanted.log, wanted.created, wanted.after, wanted.through, wanted.limit
            )
            response.log.CopyFrom(messages.log_page_to_proto(page))
        case "key":
            found = state.keys.get(request.key)
            response.keys.CopyFrom(messages.key_page_to_proto(KeyPage([found] if found else [])))
        case "keys":
            keys = key_page(state, request.keys.prefix, request.keys.after, request.keys.limit)
            response.keys.CopyFrom(messages.key_page_to_proto(keys))
        case "logs":
            logs, more = logs_page(state, request.logs.after, request.logs.limit)
            response.logs.logs.extend(messages.log_to_proto(log) for log in logs)
            response.logs.more = more
        case "content":
            content = content_page(
                state, request.content.log, request.content.after, request.content.limit
            )
            response.content.CopyFrom(messages.content_to_proto(content))
        case _:
            raise InvalidArgument(
                "the read names neither a log, a key, keys, logs nor their content"
            )
    return response


def tail(state: JournalState, request: pb.JournalTailRequest, after: int) -> pb.JournalTailResponse:
    """Return the changes after an id.

    Args:
        state: state of the journal.
        request: names the log, or a prefix of keys.
        after: the reader has seen everything up to it.

    Raises:
        Unavailable: this replica has not applied the creation of the log, or a change that the tail asks for.
        LogGone: the log is not the one that the reader knows.
        InvalidArgument: the tail names nothing.
    """
    check_least(state, request.least)
    match request.WhichOneof("what"):
        case "log":
            page = tail_of_log(state, request.log, request.created, after)
        case "prefix":
            page = tail_of_keys(state, request.prefix, after)
        case _:
            raise InvalidArgument("the tail names neither a log nor a prefix of keys")
    return messages.tail_to_proto(page)
