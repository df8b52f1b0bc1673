"""Random messages of any type, by its descriptor: extreme numbers, long and empty texts, any nesting."""

import random
from collections.abc import Sequence
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

NUMBERS = (0, 1, 2, 7, 1 << 16, (1 << 31) - 1, (1 << 32) - 1, 1 << 32, (1 << 63) - 1, (1 << 64) - 1)
TEXTS = ("", "a", "log", "k", "k/", "\0", "é" * 200, "x" * 300, "x" * 2000, "\U0010ffff")
DATA = (b"", b"a", b"\0" * 16, b"\xff" * 16, b"x" * 70_000, b"x" * (2 << 20))


_MASKS = {
    FieldDescriptor.TYPE_UINT32: (1 << 32) - 1,
    FieldDescriptor.TYPE_FIXED32: (1 << 32) - 1,
    FieldDescriptor.TYPE_INT32: (1 << 31) - 1,
    FieldDescriptor.TYPE_ENUM: 31,
    FieldDescriptor.TYPE_INT64: (1 << 63) - 1,
}
"""Bits of a number by type of its field; fields of other types take 64."""
MAX_DEPTH = 6
"""Levels of messages; those of predicates would have no end."""


def draw(
    rng: random.Random,
    kind: type[Message],
    texts: Sequence[str],
    numbers: Sequence[int],
    depth: int = 0,
    data: Sequence[bytes] = DATA,
) -> Any:
    """Return a random message.

    Args:
        rng: draws it.
        kind: type of the message.
        texts: further texts for its fields, drawn often.
        numbers: further numbers for its fields, drawn often.
        depth: level of this message.
        data: values of its bytes; those from the fifth on are rare.
    """
    message = kind()
    for field in message.DESCRIPTOR.fields:
        entry = field.message_type
        if entry is not None and (depth == MAX_DEPTH or entry.GetOptions().map_entry):
            continue
        if rng.random() < 0.25 or (field.containing_oneof is not None and rng.random() < 0.5):
            continue
        if field.is_repeated:
            many = rng.choice((0, 1, 1, 2, 3, 65 if depth < 3 else 3))
            if field.type == FieldDescriptor.TYPE_MESSAGE:
                many = min(many, 3) if rng.random() < 0.95 else many
                for _ in range(many):
                    made = getattr(message, field.name).add()
                    made.CopyFrom(draw(rng, type(made), texts, numbers, depth + 1, data))
            else:
                values = [_value(rng, field, texts, numbers, data) for _ in range(many)]
                getattr(message, field.name).extend(values)
        elif field.type == FieldDescriptor.TYPE_MESSAGE:
            part = getattr(message, field.name)
            part.CopyFrom(draw(rng, type(part), texts, numbers, depth + 1, data))
        else:
            setattr(message, field.name, _value(rng, field, texts, numbers, data))
    return message


def _value(
    rng: random.Random, field: Any, texts: Sequence[str], numbers: Sequence[int], data: Sequence[bytes]
) -> Any:  # fmt: skip
    match field.type:
        case FieldDescriptor.TYPE_STRING:
            return rng.choice(texts if texts and rng.random() < 0.7 else TEXTS)
        case FieldDescriptor.TYPE_BYTES:
            return rng.choice(data[:4] if rng.random() < 0.95 else data)
        case FieldDescriptor.TYPE_BOOL:
            return rng.random() < 0.5
        case _:
            number = rng.choice(numbers if numbers and rng.random() < 0.5 else NUMBERS)
            return number & _MASKS.get(field.type, (1 << 64) - 1)
