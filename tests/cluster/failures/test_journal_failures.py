"""kill -9 and SIGSTOP of a journal's leader under appenders and tails: each entry is returned once."""

import threading
from collections.abc import Callable, Iterator

import pytest

import nyala
from nyala.testing import MiniCluster
from tests.waiting import wait_until

pytestmark = pytest.mark.full

JOURNAL = "appended"
LEADERS = 4
"""Leaders that are killed or stopped, in turn."""


@pytest.fixture(scope="module")
def own() -> Iterator[MiniCluster]:
    with MiniCluster() as made:
        yield made


class Appender(threading.Thread):
    """Appends numbers, each on the condition that its last entry is the newest; resolves unknown outcomes."""

    def __init__(self, cluster: MiniCluster, log: str) -> None:
        super().__init__(daemon=True)
        self._cluster, self._log = cluster, log
        self.stop = threading.Event()
        self.appended: list[int] = []
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            self._append()
        except BaseException as err:
            self.failure = err

    def _append(self) -> None:
        with self._cluster.connect() as client:
            log, last = client.journal(JOURNAL).log(self._log), 0
            while not self.stop.is_set():
                number = len(self.appended)
                try:
                    last = log.append(b"%d" % number, expected=last)
                except nyala.errors.OutcomeUnknown:
                    continue
                except nyala.ConditionFailed as err:  # an earlier attempt took effect
                    last = err.last
                self.appended.append(last)


class Follower(threading.Thread):
    """Collects the entries of a tail until the entry "end"."""

    def __init__(self, cluster: MiniCluster, log: str) -> None:
        super().__init__(daemon=True)
        self._cluster, self._log = cluster, log
        self.held: dict[int, bytes] = {}
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            self._follow()
        except BaseException as err:
            self.failure = err

    def _follow(self) -> None:
        with self._cluster.connect() as client:
            last = 0
            for event in client.journal(JOURNAL).log(self._log).tail():
                if isinstance(event, nyala.Rebased):
                    self.held, last = {}, 0
                elif isinstance(event, nyala.Entry):
                    assert event.id > last, f"{event} after {last}"
                    self.held[event.id], last = event.data, event.id
                    if event.data == b"end":
                        return


def leader(cluster: MiniCluster) -> str:
    names = {cluster.address(n): n for n in cluster.names}

    def known() -> str | None:
        with cluster.connect() as client:
            return names.get(client.journal(JOURNAL).location().leader or "")

    return str(wait_until(known, "the masters know the leader of the journal"))


def goes_on(appenders: list[Appender], before: int) -> Callable[[], bool]:
    """Return whether the first appender has made progress, or one has failed."""
    return lambda: len(appenders[0].appended) > before + 3 or any(a.failure for a in appenders)


@pytest.mark.timeout(590)
def test_appends_and_tails_continue_while_leaders_are_killed_or_stopped(own):
    with own.connect() as client:
        journal = client.create_journal(JOURNAL)
    appenders = [Appender(own, f"log{n}") for n in range(2)]
    followers = [Follower(own, f"log{n}") for n in range(2)]
    for thread in (*appenders, *followers):
        thread.start()
    for number in range(LEADERS):
        victim, before = leader(own), len(appenders[0].appended)
        (own.kill if number % 2 else own.pause)(victim)
        try:
            wait_until(goes_on(appenders, before), "another leader takes appends")
        finally:
            (own.start if number % 2 else own.resume)(victim)
    for appender in appenders:
        appender.stop.set()
        appender.join(120)
        assert appender.failure is None
    with own.connect() as client:
        journal = client.journal(JOURNAL)
        for number, appender in enumerate(appenders):
            log = journal.log(f"log{number}")
            end = log.append(b"end")
            assert [(e.id, e.data) for e in log.read()] == [
                *((i, b"%d" % n) for n, i in enumerate(appender.appended)),
                (end, b"end"),
            ]
            followers[number].join(120)
            assert followers[number].failure is None
            assert followers[number].held == {e.id: e.data for e in log.read()}
