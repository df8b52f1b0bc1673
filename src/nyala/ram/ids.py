"""Ids of the ensemble's servers, and the space of key hashes."""

from dataclasses import dataclass
from typing import NamedTuple, Self

from nyala.common.errors import InvalidArgument
from nyala.wire.proto import ram_pb2 as pb

LAST_HASH = (1 << 64) - 1
"""Highest key hash."""


@dataclass(frozen=True, order=True, slots=True)
class ServerId:
    """A server of the ensemble. An index is used again, a generation is not (S3.11).

    Attributes:
        index: the lowest that was free when the server enlisted.
        generation: version of the server list by which the server came into it.
    """

    index: int
    generation: int

    def __str__(self) -> str:
        return f"{self.index}.{self.generation}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the id that a text such as "2.17" names.

        Raises:
            InvalidArgument: the text names none.
        """
        index, _, generation = text.partition(".")
        if not (index.isdecimal() and generation.isdecimal() and len(text) <= 32):
            raise InvalidArgument(f"{text!r} is no server id; give one such as 2.17")
        return cls(int(index), int(generation))

    @classmethod
    def of(cls, message: pb.ServerId) -> Self:
        """Return the id in a message."""
        return cls(message.index, message.generation)

    def message(self) -> pb.ServerId:
        """Return it as a message."""
        return pb.ServerId(index=self.index, generation=self.generation)


class HashRange(NamedTuple):
    """A tablet: the keys of a table whose hashes are from `first` to `last`."""

    table_id: int
    first: int
    last: int


def equal_ranges(count: int) -> list[tuple[int, int]]:
    """Return as many equal ranges of key hashes; the last one has the remainder (S3.50)."""
    size = (LAST_HASH + 1) // count
    return [(i * size, LAST_HASH if i == count - 1 else (i + 1) * size - 1) for i in range(count)]
