"""Columns of tablets to scan, and predicates on them."""

from typing import Any

import pyarrow as pa

from nyala.common.expressions.predicate import Compare
from tests.unit.tablet.support.tablet_support import INT_KEY

Row = dict[str, Any]
K, A, S = (c.id for c in INT_KEY.columns)


def is_(column, sign, value):
    kind = INT_KEY.by_id[column].type
    return Compare(column, sign, pa.scalar(value, kind))
