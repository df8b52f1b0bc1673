"""Invalid requests of definitions."""

from nyala.wire.proto import nyala_pb2 as pb
from tests.unit.master.support.master_create import broken, key, piece


def too_wide():
    """A table of 10,000 columns, which nyala's client never sends."""
    request = broken()
    last = request.table.schema.columns[-1]
    for number in range(len(request.table.schema.columns), 10_000):
        request.table.schema.columns.add(
            id=number, name=f"c{number}", type=last.type, nullable=True
        )
    request.table.schema.next_column_id = 10_000
    return request


def ranges(*pieces):
    return broken(partition__range_column_ids=[0], partition__ranges=list(pieces))


CREATE = {
    "no name": (broken(name=""), "1 to 256 bytes of printable text"),
    "control characters": (broken(name="a\x1b[2J\x00"), "printable text"),
    "text that turns its direction": (broken(name="a\u202eb"), "printable text"),
    "a name without end": (broken(name="x" * 10_000), "1 to 256 bytes"),
    "the name of another": (broken(name="t"), "exists already"),
    "10,000 columns": (too_wide(), "10000 columns; a table has at most 1000"),
    "a column that unprintable": (broken(schema__columns__1__name="a\nb"), "unprintable"),
    "overlapping ranges": (ranges(piece(key(0), key(5)), piece(key(4), key(9))), "overlap"),
    "an empty range": (ranges(piece(key(5), key(5))), "empty"),
    "a bound that is no key": (ranges(piece(b"\xff", None)), "no key of its columns"),
    "zero buckets": (broken(partition__hash=[pb.HashLevel(column_ids=[0], buckets=0)]), "0 tablets"),
    "four billion buckets": (
        broken(partition__hash=[pb.HashLevel(column_ids=[0], buckets=2**32 - 1)]), "4294967295 tablets"),
    "two replicas": (broken(replicas=2), "an odd number"),
    "nine replicas": (broken(replicas=9), "from 1 to 7"),
    "more replicas than servers": (broken(replicas=5), "5 live tablet servers, and 3 are live"),
    "an unknown column in the partitioning": (
        broken(partition__hash=[pb.HashLevel(column_ids=[77], buckets=2)]), "distinct key columns"),
    "an unknown column in the ranges": (
        broken(partition__range_column_ids=[77], partition__ranges=[piece(key(0), None)]),
        "distinct key columns"),
    "a key of unknown columns": (broken(schema__key_ids=[9]), r"the key columns \[9\]"),
    "an unknown option": (broken(options={"color": "red"}), "no table option"),
    "a comment without end": (broken(comment="x" * 70_000), "over 65536 bytes"),
}  # fmt: skip
DROP = {
    "nobody named": (pb.DropTableRequest(), "one of the two"),
    "a table that is not there": (pb.DropTableRequest(name="x\x00"), "no table"),
    "for ever": (pb.DropTableRequest(name="t", reserve_seconds=1 << 63), "at most"),
}
RECALL = {
    "nobody named": (pb.RecallTableRequest(), "no table has the id"),
    "a table that is not there": (pb.RecallTableRequest(id="x" * 9_999), "no table has the id"),
}
