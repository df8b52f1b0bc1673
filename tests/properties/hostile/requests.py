"""Hostile requests to methods: messages drawn by their descriptors, and damaged bytes of messages."""

import asyncio
import os
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any

from google.protobuf.message import DecodeError, Message

from nyala.common.errors import NyalaError
from nyala.env.rpc import Method
from tests.cluster.support.direct import mutations
from tests.unit.tserver.support.random_messages import draw

SEED = int(os.environ.get("HOSTILE_SEED", "0"))
"""Added to the seeds of the tests; `./run soak hostile` runs them with many."""
LIMIT_S = 60
"""Time in seconds within which a request is answered."""
DATA = (b"", b"a", b"\0" * 16, b"\xff" * 16, b"x" * 70_000)
_NOTHING: Mapping[str, Any] = {}
TIMES = ("timeout_ms", "wait_ms")
NO_REFUSALS = ("INTERNAL", "OUTCOME_UNKNOWN", "TIMED_OUT", "CORRUPT", "BAD_VERSION", "NOT_READY")
"""Codes that are no clean refusal of a request that is wrong."""


def kind_of(method: Method) -> type[Message]:
    """Return the type of a method's requests, which is not FlightData."""
    return type(method.decode_request(b""))


def requests_of(
    rng: random.Random, kind: type[Message], count: int, texts: Sequence[str] = (),
    numbers: Sequence[int] = (), samples: Sequence[Message] = (), fixed: Mapping[str, Any] = _NOTHING,
) -> Iterator[Any]:  # fmt: skip
    """Return hostile requests of a type; every second one comes from damaged bytes.

    Args:
        rng: draws them.
        kind: type of the messages.
        count: number of requests; fewer if damaged bytes are no message.
        texts: further texts for fields, such as ids that exist.
        numbers: further numbers for fields.
        samples: proper messages; those of this type are damaged.
        fixed: values of fields of the messages, in three of four messages that have these fields.
    """
    proper = [s for s in samples if isinstance(s, kind)]
    for number in range(count):
        damaged = number % 2 == 1
        made = (
            rng.choice(proper) if damaged and proper else draw(rng, kind, texts, numbers, data=DATA)
        )
        if damaged:
            (raw,) = mutations(made.SerializeToString() or b"\0", rng.randrange(1 << 30), 1)
            try:
                made = kind.FromString(raw)
            except DecodeError:
                continue
        if rng.random() < 0.75:
            for name in fixed.keys() & made.DESCRIPTOR.fields_by_name.keys():
                setattr(made, name, fixed[name])
        bound_times(made)
        yield made


def bound_times(message: Message) -> None:
    """Set times of a request that a caller chooses to such as do not delay or end a test."""
    for field in message.DESCRIPTOR.fields:
        if field.name in TIMES:
            setattr(message, field.name, 10 if field.name == "wait_ms" else 5_000)


async def outcome(call: Callable[..., Awaitable[Any]], *args: Any) -> str:
    """Return the code of a call's refusal, `OK`, or what failed."""
    try:
        async with asyncio.timeout(LIMIT_S):
            await call(*args)
    except NyalaError as err:
        return err.code if err.message else "an error without a message"
    except TimeoutError:
        return f"no answer in {LIMIT_S} s"
    except Exception as err:  # the handler has no such error on purpose
        return f"{type(err).__name__}: {err}"
    return "OK"


def unclean(seen: Counter[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return those of some (method, outcome) that are neither answers nor clean refusals."""
    return [
        key for key in seen if key[1] in NO_REFUSALS or (key[1] != "OK" and not key[1].isupper())
    ]
