"""Ctrl-C during calls on journals: each ends at once, the client is usable, the outcome is as documented."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial

import pytest

import nyala
from nyala.testing import MiniCluster
from tests.interrupting import interrupt


@pytest.fixture(scope="module")
def journal(cluster: MiniCluster) -> Iterator[nyala.Journal]:
    with cluster.connect() as client:
        made = client.create_journal("interrupted")
        yield made
        client.drop_journal("interrupted")


@contextmanager
def paused(cluster: MiniCluster) -> Iterator[None]:
    """Stop the tablet servers, which do not answer meanwhile."""
    names = [n for n in cluster.names if n.startswith("tserver")]
    for name in names:
        cluster.pause(name)
    try:
        yield
    finally:
        for name in names:
            cluster.resume(name)


def appended(journal: nyala.Journal, last: int) -> None:
    journal.log("a").append(b"x", expected=last)


def stepped(journal: nyala.Journal, last: int) -> None:
    with journal.atomically() as step:
        step.require(journal.log("a"), last=last)
        step.append(journal.log("a"), b"x")


@pytest.mark.parametrize("change", [appended, stepped])
def test_interrupted_change_is_settled_by_the_same_condition(cluster, journal, change):
    log = journal.log("a")
    last = log.append(b"before")
    with paused(cluster):
        interrupt(lambda: change(journal, last))
    with suppress(nyala.ConditionFailed):  # the interrupted one took effect
        change(journal, last)
    assert len(list(log.read(after=last))) == 1


def test_interrupted_block_of_atomically_sends_nothing(journal):
    log = journal.log("b")
    first = log.append(b"1")

    def block() -> None:
        with journal.atomically() as step:
            step.append(log, b"2")
            os.kill(os.getpid(), signal.SIGINT)
            threading.Event().wait(60)  # the interrupt ends it

    with pytest.raises(KeyboardInterrupt):
        block()
    assert log.last_id() == first


def test_interrupted_reads_end_and_the_client_is_usable(cluster, journal):
    log = journal.log("c")
    first = log.append(b"1")
    journal.set("c", b"1")
    reads: list[Callable[[], object]] = [
        lambda: list(log.read()),
        log.last_id,
        lambda: list(journal.list("c")),
        lambda: journal.get("c"),
        journal.logs,
    ]
    with paused(cluster):
        for read in reads:
            interrupt(read)
    assert [e.id for e in log.read()] == [first]
    assert [k.name for k in journal.list("c")] == ["c"]


def test_interrupted_tails_and_watches_end_and_others_go_on(journal):
    log = journal.log("d")
    first, version = log.append(b"1"), journal.set("d", b"1")
    events, changes = log.tail(after=first), journal.watch("d", after=version)
    assert next(changes) == nyala.Synced(version)
    iterators: tuple[Iterator[object], ...] = (events, changes)
    for iterator in iterators:
        interrupt(partial(next, iterator))
        with pytest.raises(StopIteration):
            next(iterator)
    second, newer = log.append(b"2"), journal.set("d", b"2")
    events, changes = log.tail(after=first), journal.watch("d", after=version)
    assert next(events) == nyala.Entry(second, b"2")
    assert next(changes) == nyala.Key("d", b"2", newer)
    del events, changes
