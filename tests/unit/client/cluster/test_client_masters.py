"""A client follows the leader master: hints, failover, and a clear error without a leader."""

import asyncio
import random
from typing import Any

import pytest

from nyala.client.cluster.known_masters import MasterAddresses
from nyala.client.cluster.masters import MAX_HOPS, Masters, parse_addresses
from nyala.client.connection import REACH_MS
from nyala.common.errors import (
    InvalidArgument,
    NotFound,
    NotLeader,
    OutcomeUnknown,
    TimedOut,
    Unavailable,
)
from nyala.env.env import Env
from nyala.env.files import SystemFiles
from nyala.wire import methods
from nyala.wire.proto import nyala_pb2 as pb

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


def ask(answer, *, given=(A, B, C), timeout_ms=2_000):
    time: Any = Time()
    script: Any = Script(time, answer)
    env = Env(time, random.Random(7), SystemFiles(), time, script)
    masters = Masters(env, given)
    call = masters.call(methods.LIST_TABLES, pb.ListTablesRequest(), timeout_ms=timeout_ms)
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
    """Masters of which only one answers; a call to another one takes all its time."""

    def __init__(self, time: Any, alive: str) -> None:
        self._time, self._alive = time, alive
        self.tried: set[str] = set()

    async def call(self, address, method, request, *, timeout_ms):
        self.tried.add(address)
        if address == self._alive:
            return pb.MasterStatusResponse(leader_address=address)
        self._time.now_us += 1000 * timeout_ms
        raise TimedOut(f"{address} is silent")


@pytest.mark.parametrize("count", [1, 3, 12])
def test_every_silent_address_is_tried_and_named_before_the_deadline(count):
    time: Any = Time()
    given = [f"127.0.0.1:{n + 1}" for n in range(count)]
    script: Any = Silent(time, "")
    masters = Masters(Env(time, random.Random(7), SystemFiles(), time, script), given)
    with pytest.raises(Unavailable) as raised:
        asyncio.run(masters.reach(REACH_MS))
    assert all(f"{address} is silent" in raised.value.message for address in given)
    assert time.now_us <= 3_000_000
    assert REACH_MS <= 3_000


def test_silent_addresses_do_not_prevent_use_of_the_one_that_answers():
    time: Any = Time()
    given = [f"127.0.0.1:{n + 1}" for n in range(12)]
    script: Any = Silent(time, given[-1])
    masters = Masters(Env(time, random.Random(7), SystemFiles(), time, script), given)
    asyncio.run(masters.reach(REACH_MS))
    assert script.tried == set(given)
