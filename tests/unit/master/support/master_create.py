"""Requests of tables, some of them invalid, for the tests of creation."""

from typing import Any

from nyala.wire.proto import nyala_pb2 as pb
from tests.unit.master.support.master_helpers import create_request


def broken(**changes):
    request = create_request("t")
    for path, value in changes.items():
        target: Any = request.table
        *parents, last = path.split("__")
        for part in parents:
            target = target[int(part)] if part.isdigit() else getattr(target, part)
        if isinstance(value, list):
            del getattr(target, last)[:]
            getattr(target, last).extend(value)
        elif isinstance(value, dict):
            getattr(target, last).update(value)
        else:
            setattr(target, last, value)
    return request


def key(number):
    return (number + 2**63).to_bytes(8, "big")


def piece(lower, upper):
    ends = [
        pb.RangeBound(unbounded=True) if end is None else pb.RangeBound(key=end)
        for end in (lower, upper)
    ]
    return pb.RangePartition(lower=ends[0], upper=ends[1])
