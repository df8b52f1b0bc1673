"""A client follows the leader master: hints, failover, and a clear error without a leader."""

import asyncio
import random
from typing import Any

import pytest

from nyala.client.calls.opening import LEAST_REACH_MS, REACH_MS, reach_ms
from nyala.client.cluster.first_contact import TRY_MS, SlowMasters
from nyala.client.cluster.known_masters import MasterAddresses
from nyala.client.cluster.masters import MAX_HOPS, Masters, parse_addresses
from nyala.client.deadline import SHORT_TRY_MS
from nyala.common.errors import (
    NOT_SENT,
    InvalidArgument,
    NotFound,
    NotLeader,
    OutcomeUnknown,
    Throttled,
    TimedOut,
    Unavailable,
)
from nyala.env.env import Env
from nyala.env.files import SystemFiles
from nyala.env.monotonic import began_us, command, monotonic_us
from nyala.wire import methods
from nyala.wire.proto import nyala_pb2 as pb
from tests.sim.world.loop import run, seeded
from tests.sim.world.tasks import SimClock, SimTasks

A, B, C = "127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"


class Time:
    """A clock that advances only by `sleep_ms`."""

    def __init__(self):
        self.now_us = 0

    def monotonic_us(self):
        return self.now_us

    def wall_us(self):
        return self.now_us

    async def sleep_ms(self, duration_ms):
        self.now_us += round(duration_ms * 1000)


class Script:
    """Masters as a function of (address, number of calls so far); every call takes 1 ms."""

    def __init__(self, time, answer):
        self._time, self._answer, self.asked = time, answer, []

    async def call(self, address, method, request, *, timeout_ms):
        self._time.now_us += 1000
        if method is methods.MASTER_STATUS:
            raise Unavailable("no status here")
        self.asked.append(address)
        found = self._answer(address, len(self.asked))
        if isinstance(found, Exception):
            raise found
        return found


def ask(answer, *, given=(A, B, C), timeout_ms=2_000, how=Masters.call):
    time: Any = Time()
    script: Any = Script(time, answer)
    env = Env(time, random.Random(7), SystemFiles(), time, script)
    masters = Masters(env, given)
    call = how(masters, methods.LIST_TABLES, pb.ListTablesRequest(), timeout_ms=timeout_ms)
    return script, masters, time, asyncio.run(call)


LISTED = pb.ListTablesResponse()


def test_leader_hint_is_followed_immediately():
    script, _masters, time, answer = ask(
        lambda address, n: LISTED if address == C else NotLeader("no", {"address": C})
    )
    assert answer is LISTED
    assert script.asked == [A, C]
    assert time.now_us < 10_000, "no pause before a hinted leader"


def test_leader_hint_leads_to_unlisted_master():
    _script, masters, _, _ = ask(
        lambda address, n: LISTED if address == C else NotLeader("no", {"address": C}), given=(A,)
    )
    assert C in masters.known


@pytest.mark.row("S0.29")
def test_call_is_retried_through_failover_until_a_master_leads():
    def answer(address, number):
        if number < 12:  # the leader has crashed, the others have no new one yet
            return Unavailable("connection refused") if address == A else NotLeader("no leader")
        return LISTED if address == B else NotLeader("no", {"address": B})

    script, _, _, found = ask(answer, timeout_ms=60_000)
    assert found is LISTED
    assert set(script.asked[:12]) == {A, B, C}, "all masters of the list are tried"


@pytest.mark.row("S0.29")
def test_error_names_all_unreachable_masters_at_deadline():
    with pytest.raises(TimedOut) as raised:
        ask(lambda address, n: Unavailable(f"{address} refused"), timeout_ms=1_500)
    text = str(raised.value)
    assert all(f"{a} refused" in text for a in (A, B, C))
    assert "1500 ms" in text
    assert "nyala status" in text


def test_mutual_leader_hints_do_not_loop():
    def answer(address, number):
        return NotLeader("no", {"address": B if address == A else A})

    with pytest.raises(TimedOut):
        ask(answer, given=(A, B), timeout_ms=1_000)
    time: Any = Time()
    script: Any = Script(time, answer)
    masters = Masters(Env(time, random.Random(7), SystemFiles(), time, script), (A, B))
    with pytest.raises(TimedOut):
        asyncio.run(masters.call(methods.LIST_TABLES, pb.ListTablesRequest(), timeout_ms=1_000))
    assert len(script.asked) < 40 + MAX_HOPS, "rounds are separated by pauses"


def test_unknown_outcome_is_retried_and_refusal_is_not():
    script, *_ = ask(lambda a, n: OutcomeUnknown("lost leadership") if n < 3 else LISTED)
    assert len(script.asked) == 3
    with pytest.raises(NotFound):
        ask(lambda a, n: NotFound("no such table"))


@pytest.mark.parametrize("first", [OutcomeUnknown("lost leadership"), Unavailable("reset")])
def test_refusal_of_a_definition_leaves_unanswered_earlier_try_unknown(first):
    def answer(address, n):
        return first if n == 1 else InvalidArgument("too few servers")

    with pytest.raises(OutcomeUnknown, match="too few servers; an earlier try was not answered"):
        ask(answer, how=Masters.change)
    with pytest.raises(InvalidArgument):  # a read has no effect
        ask(answer)
    with pytest.raises(InvalidArgument):
        ask(lambda a, n: NotLeader("no", {}) if n == 1 else answer(a, n), how=Masters.change)


def test_later_tries_do_not_make_the_outcome_of_an_earlier_one_known():
    def answer(address, n):
        tries = [OutcomeUnknown("lost leadership"), Unavailable("no connection", NOT_SENT)]
        return tries[n - 1] if n <= len(tries) else InvalidArgument("too few servers")

    with pytest.raises(OutcomeUnknown, match="an earlier try was not answered"):
        ask(answer, how=Masters.change)


def test_lookups_after_a_definition_require_a_catalog_that_has_it():
    request = pb.ListTablesRequest()

    async def define_and_look_up(masters, method, _request, *, timeout_ms):
        await masters.define(method, pb.CreateTableRequest(), timeout_ms=timeout_ms)
        return await masters.look_up(method, request, max_age_ms=500, timeout_ms=timeout_ms)

    made = pb.CreateTableResponse(at=77)
    ask(lambda address, n: made if n == 1 else LISTED, how=define_and_look_up)
    assert request.staleness.not_before == 77, "a follower's older catalog lacks the table"


@pytest.mark.parametrize("text", ["", " , ", "localhost", "host:port", "host:99999", "a:1:2"])
def test_invalid_addresses_are_refused_with_expected_form(text):
    with pytest.raises(InvalidArgument, match=r"host:|NYALA_MASTERS|ambiguous"):
        parse_addresses(text)


def test_addresses_are_accepted_as_text_or_list_without_duplicates():
    assert parse_addresses(f"{A}, {B},{A}") == [A, B] == parse_addresses([A, B])


def test_configuration_replaces_addresses_unless_a_member_is_unknown():
    known = MasterAddresses([A])
    known.add([B])
    config = pb.ConsensusState(config_term=1, config_index=7)
    config.members.add(uuid="", address=C)
    known.apply_config(config)
    assert list(known) == [A, B, C], "a configuration with an unknown member replaces nothing"
    config.members[0].uuid = "c"
    known.apply_config(config)
    assert list(known) == [C, A], "the given address stays at the end"
    config.members[0].address, config.config_index = B, 6
    known.apply_config(config)
    assert list(known) == [C, A, B], "an older configuration removes no address"


class Silent:
    """Masters of which only one answers; a call to another one takes all its time, or does not end at all."""

    def __init__(self, tasks: SimTasks, alive: str, *, hangs: bool = False) -> None:
        self._tasks, self._alive, self._hangs = tasks, alive, hangs
        self.tried: set[str] = set()

    async def call(self, address, method, request, *, timeout_ms):
        self.tried.add(address)
        if address == self._alive:
            return pb.MasterStatusResponse(leader_address=address)
        await self._tasks.sleep_ms(1e9 if self._hangs else timeout_ms)
        raise TimedOut(f"{address} is silent")


def reach(given, alive="", *, hangs=False):
    """Return the calls, the error, and the milliseconds of `Masters.reach` on virtual time."""

    async def main(loop):
        tasks, clock = SimTasks(loop, seeded(1)), SimClock(loop)
        script: Any = Silent(tasks, alive, hangs=hangs)
        masters = Masters(Env(clock, seeded(7), SystemFiles(), tasks, script), given)
        began_us = clock.monotonic_us()
        try:
            await masters.reach(REACH_MS)
        except Unavailable as err:
            return script, err.message, (clock.monotonic_us() - began_us) / 1000
        return script, "", (clock.monotonic_us() - began_us) / 1000

    return run(main)


@pytest.mark.parametrize("hangs", [False, True])
@pytest.mark.parametrize("count", [1, 3, 12])
def test_every_silent_address_is_tried_and_named_before_the_deadline(count, hangs):
    given = [f"127.0.0.1:{n + 1}" for n in range(count)]
    script, message, took_ms = reach(given, hangs=hangs)
    said = f"no response within {TRY_MS} ms" if hangs else "{} is silent"
    assert script.tried == set(given)
    assert all(f"{a}: {said.format(a)}" in message for a in given)
    assert took_ms <= REACH_MS


def test_silent_addresses_do_not_delay_use_of_the_one_that_answers():
    given = [f"127.0.0.1:{n + 1}" for n in range(12)]
    script, message, took_ms = reach(given, given[-1], hangs=True)
    assert (script.tried, message, took_ms) == (set(given), "", 0)


class SlowCalls:
    """Masters whose answers take a time; addresses that are not among them refuse at once."""

    def __init__(self, tasks: SimTasks, needs_ms: dict[str, int]) -> None:
        self._tasks, self._needs_ms = tasks, needs_ms

    async def call(self, address, method, request, *, timeout_ms):
        needed_ms = self._needs_ms.get(address, 0)
        if not needed_ms:
            raise Unavailable(f"{address} refuses")
        await self._tasks.sleep_ms(min(needed_ms, timeout_ms))
        if needed_ms > timeout_ms:
            raise TimedOut(f"{address} is silent")
        return pb.MasterStatusResponse(leader_address=address)


def reach_slow(needs_ms, accepting, longest_ms):
    """Return the error and the milliseconds of a contact with slow masters, on virtual time."""
    given = ["one:1", "two:2"]

    async def accepts(address):
        return address in accepting

    async def main(loop):
        tasks, clock = SimTasks(loop, seeded(1)), SimClock(loop)
        script: Any = SlowCalls(tasks, needs_ms)
        masters = Masters(Env(clock, seeded(7), SystemFiles(), tasks, script), given)
        began_us, message = clock.monotonic_us(), ""
        try:
            await masters.reach(REACH_MS, SlowMasters(longest_ms, accepts))
        except Unavailable as err:
            message = err.message
        return message, (clock.monotonic_us() - began_us) / 1000

    return run(main)


def test_slow_master_that_accepts_connections_is_awaited_until_the_deadline_of_calls():
    message, took_ms = reach_slow({"two:2": 9_000}, ["two:2"], 60_000)
    assert message == ""
    assert took_ms < 40_000
    message, took_ms = reach_slow({"two:2": 90_000}, ["two:2"], 20_000)
    assert "one:1: one:1 refuses; two:2: two:2 is silent" in message
    assert 19_000 <= took_ms <= 20_000


def test_silent_address_that_accepts_no_connection_is_not_awaited_longer():
    message, took_ms = reach_slow({"two:2": 9_000}, ["one:1"], 60_000)
    assert "one:1: one:1 refuses; two:2: two:2 is silent" in message
    assert took_ms <= REACH_MS


def test_time_that_a_command_needs_before_it_connects_counts():
    assert reach_ms(0) == REACH_MS
    assert reach_ms(500) == REACH_MS - 500
    assert reach_ms(60_000) == LEAST_REACH_MS
    before = began_us()
    with command():
        began = began_us()
        while monotonic_us() == began:
            continue
        assert began_us() == began >= before
    assert began_us() > began


def test_try_that_the_deadline_cuts_short_keeps_the_reason_of_an_earlier_one():
    def answer(address, n):
        return Unavailable("its log is full") if n <= 3 else TimedOut("no response")

    with pytest.raises(TimedOut) as raised:
        ask(answer, timeout_ms=SHORT_TRY_MS)
    assert raised.value.message.count("its log is full") == 3


def test_last_reason_of_a_master_that_had_time_is_named():
    def answer(address, n):
        return Unavailable("its log is full") if n <= 3 else TimedOut("no response")

    with pytest.raises(TimedOut) as raised:
        ask(answer, timeout_ms=2_000)
    assert raised.value.message.count("no response") == 3


def test_leader_that_asks_to_wait_for_longer_than_the_deadline_is_not_asked_again():
    """So a login that has to wait a minute does not hold a connection of the join port for seconds."""
    asked = []

    def answer(address, n):
        asked.append(address)
        return Throttled("wait a minute", {"retry_after_ms": "60000"})

    with pytest.raises(Throttled, match="wait a minute"):
        ask(answer)
    assert len(asked) == 1
    _script, _masters, _time, found = ask(
        lambda address, n: LISTED if n == 3 else Throttled("wait", {"retry_after_ms": "200"})
    )
    assert found is LISTED


class TabletServers:
    """Servers without the methods of masters; `silent` ones do not answer."""

    def __init__(self, silent: str = "") -> None:
        self._silent = silent
        self.calls = 0

    async def call(self, address, method, request, *, timeout_ms):
        self.calls += 1
        if address == self._silent:
            raise Unavailable(f"{address} refuses")
        if method is methods.SERVER_INFO:
            return pb.ServerInfoResponse(role="tserver", master_addresses=["m:7051", "n:7051"])
        raise InvalidArgument("no such method")


@pytest.mark.parametrize(("silent", "error"), [("", InvalidArgument), (B, Unavailable)])
def test_address_of_a_tablet_server_is_named_as_such_with_its_masters(silent, error):
    async def main(loop):
        tasks, clock = SimTasks(loop, seeded(1)), SimClock(loop)
        script: Any = TabletServers(silent)
        masters = Masters(Env(clock, seeded(7), SystemFiles(), tasks, script), (A, B))
        with pytest.raises(error, match=f"{A} is the address of a tablet server") as raised:
            await masters.reach(REACH_MS)
        assert "masters, which are at m:7051, n:7051" in raised.value.message
        assert (script.calls == 4) is (not silent), "none of them becomes a master"

    run(main)
