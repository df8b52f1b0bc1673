"""Tails of logs and watches of keys: what is valid, then each change once, in the order of the ids."""

from collections.abc import AsyncGenerator
from dataclasses import replace

from nyala.client.journal.items import Entry, Event, Invalidated, Key, KeyEvent, Rebased, Synced
from nyala.client.journal.locations import OpenJournal
from nyala.client.journal.pages import LogReader, key_pages
from nyala.client.journal.polling import Poller
from nyala.client.journal.reads import JournalReads
from nyala.common.errors import OutcomeUnknown, Retryable
from nyala.wire.proto import journal_pb2 as pb


async def tail(log: LogReader, poller: Poller, after: int) -> AsyncGenerator[list[Event], None]:
    """Yield what changes in a log, without end; no list is empty.

    A log that was created after `after` is another than the reader's, which was deleted: it is told by
    `Rebased`, as is a log that there is not any more.

    Args:
        log: the log.
        poller: sends the requests; closed at the end.
        after: id; the reader has seen everything up to it. 0: it holds nothing, so no `Rebased` comes first.

    Raises:
        LogGone: the log was deleted.
        TimedOut: no replica answered in time; go on after the last id.
    """
    holds = unsure = after > 0
    try:
        while True:
            request = pb.JournalTailRequest(log=log.name, created=log.created, after=after)
            response = await poller.poll(request)
            log.found(response.created)
            newer = response.through > after  # else the replica may lack the log's creation
            deleted = unsure and (response.created > after or (newer and not response.created))
            unsure = unsure and not deleted and not response.created
            if deleted or (holds and response.rebased):
                yield [Rebased(response.through)]
            if response.rebased:
                async for entries in log.entry_pages(through=response.through):
                    yield [*entries]
            found = [_log_event(sent) for sent in response.events]
            events = _completed([e for e in found if e is not None and e.id > after])
            if events:
                yield events
            holds |= response.rebased or bool(response.events)
            if newer:
                after = response.through
                log.journal.saw(after)
    finally:
        poller.close()


def _completed(found: list[Entry | Invalidated]) -> list[Event]:
    """Return events, which are all of their ids, marked where the next one has the same id."""
    nexts = [e.id for e in found[1:]] + [0]
    return [
        replace(e, complete=False) if e.id == following else e
        for e, following in zip(found, nexts, strict=False)
    ]


def _log_event(sent: pb.TailEvent) -> Entry | Invalidated | None:
    match sent.WhichOneof("what"):
        case "entry":
            return Entry(sent.entry.id, sent.entry.data)
        case "invalidated":
            return Invalidated(tuple(sent.invalidated.ids), sent.invalidated.id)
        case _:
            return None


async def watch(
    reads: JournalReads, poller: Poller, journal: OpenJournal, prefix: str, after: int
) -> AsyncGenerator[list[KeyEvent], None]:
    """Yield what changes in the keys with a prefix, without end; of several changes of a key, only the last.

    No list is empty. `Synced` comes once after the initial state, and once after what follows a `Rebased`.

    Args:
        reads: for keys that are valid, when not all changes are known, and for the journal's last change.
        poller: sends the requests; closed at the end.
        journal: the journal.
        prefix: prefix of the keys.
        after: id; the reader has seen everything up to it. 0: it holds nothing, so no `Rebased` comes first.

    Raises:
        TimedOut: no replica answered in time; go on after the last version.
    """
    holds = after > 0
    ahead: dict[
        str, int
    ] = {}  # versions that were read above `after`, of keys whose changes will come again
    synced = stalled = False
    target: int | None = None  # last change of the state that is complete with it; None: not known
    try:
        while True:
            request = pb.JournalTailRequest(prefix=prefix, after=after)
            response = await poller.poll(request, wait=synced or stalled)
            if response.rebased:
                if holds:
                    yield [Rebased(response.through)]
                async for keys in key_pages(reads, journal, prefix):
                    for key in keys:
                        if key.version > response.through:
                            ahead[key.name] = key.version
                    yield [*keys]
            if response.rebased or response.more:  # both left out changes that later ones replaced
                synced, target = synced and not response.rebased, None
            found = [_key_event(sent) for sent in response.events]
            events: list[KeyEvent] = [
                e for e in found if e is not None and e.version > max(after, ahead.get(e.name, 0))
            ]
            if events:
                yield events
            holds |= response.rebased or bool(response.events)
            stalled = response.through <= after
            if response.through > after:
                after = response.through
                journal.saw(after)
            ahead = {name: version for name, version in ahead.items() if version > after}
            if not synced and not response.more:
                target = await _last_change(reads, journal) if target is None else target
                synced = target is not None and after >= target
                if synced:
                    yield [Synced(after)]
    finally:
        poller.close()


async def _last_change(reads: JournalReads, journal: OpenJournal) -> int | None:
    """Return the id of the journal's last change; None: no leader answers now."""
    try:
        # No key is empty: the answer is about the state alone.
        return (await reads.read(journal, pb.JournalReadRequest(key=""))).last
    except (Retryable, OutcomeUnknown):
        return None


def _key_event(sent: pb.TailEvent) -> Key | None:
    match sent.WhichOneof("what"):
        case "set":
            return Key(sent.set.key, sent.set.value, sent.set.version)
        case "deleted":
            return Key(sent.deleted.key, None, sent.deleted.id)
        case _:
            return None
