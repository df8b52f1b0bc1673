"""The error of a client whose masters do not answer: it comes in time, also where nothing answers at all."""

import asyncio

import pytest

from nyala.client.cluster.first_contact import DOUBT_S, REASON_S, explained
from nyala.common.errors import Unauthenticated, Unavailable
from tests.sim.world.loop import SimLoop, run

REACH_S = 2.25
ADDRESSES = ["one:1", "two:2"]


def outcome(why, reach_s=REACH_S, found=None):
    """Return the error of a contact, and when it came; the masters do not answer within a time."""
    asked: list[str] = []

    async def main(loop: SimLoop):
        async def reaching():
            await loop.delay(reach_s * 1e6)
            if found is None:
                raise Unavailable("no nyala master answers (one:1: a; two:2: b)")

        async def asks(address):
            asked.append(address)
            return await why(loop, address)

        try:
            await explained(reaching(), ADDRESSES, asks)
        except (Unavailable, Unauthenticated) as err:
            return err, loop.time()
        return None, loop.time()

    return *run(main, max_time_s=60), asked


async def silent(loop, address):
    await asyncio.Event().wait()


async def slow(loop, address):
    await loop.delay(1.2e6)
    return Unauthenticated("it accepts encrypted connections only") if address == "two:2" else None


async def other(loop, address):
    return None


def test_address_that_is_silent_for_every_purpose_delays_the_error_by_half_a_second():
    error, at_s, asked = outcome(silent)
    assert isinstance(error, Unavailable)
    assert "one:1: a; two:2: b" in error.message
    assert at_s == pytest.approx(REACH_S + REASON_S, abs=0.01)
    assert asked == ADDRESSES


def test_reason_is_asked_while_the_masters_are_awaited():
    error, at_s, _ = outcome(slow)
    assert isinstance(error, Unauthenticated)
    assert error.message == "it accepts encrypted connections only"
    assert at_s == pytest.approx(REACH_S, abs=0.01)


def test_refusal_at_once_is_explained_too():
    error, at_s, _ = outcome(other, reach_s=0.001)
    assert isinstance(error, Unavailable)
    assert at_s < 0.1


def test_master_that_answers_soon_is_not_asked_for_a_reason():
    error, _, asked = outcome(silent, reach_s=DOUBT_S / 2, found=True)
    assert error is None
    assert asked == []
    error, at_s, asked = outcome(silent, reach_s=2 * DOUBT_S, found=True)
    assert error is None
    assert at_s == pytest.approx(2 * DOUBT_S, abs=0.01)
