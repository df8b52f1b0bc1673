"""Dates and times outside the years of Python's `datetime`.

A `date` column holds any 32-bit number of days, a timestamp any 64-bit number of microseconds; `datetime` and
`date` have the years 1 to 9999 only. numpy's `datetime64` has no time zone, and uses the lowest number as
null.
"""

from dataclasses import dataclass
from datetime import date, timedelta

import pyarrow as pa

_DAYS_OF_400_YEARS = 146_097
_EPOCH = date(1970, 1, 1)
_PER_DAY = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}


@dataclass(frozen=True, slots=True)
class FarTime:
    """A date or time before year 1 or after year 9999.

    It can be written back, and used as a key, a default or a range bound.

    Attributes:
        value: days or microseconds since 1970, in UTC if the type has a time zone.
        type: the Arrow type of the column.
    """

    value: int
    type: pa.DataType

    @property
    def scalar(self) -> pa.Scalar:
        """The value as an Arrow scalar."""
        return pa.scalar(self.value, self.type)

    def __str__(self) -> str:
        if pa.types.is_date32(self.type):
            return _day(self.value)
        per_day = _PER_DAY[self.type.unit]
        days, rest = divmod(self.value, per_day)
        seconds, nanos = divmod(rest * _PER_DAY["ns"] // per_day, 1_000_000_000)
        minutes, second = divmod(seconds, 60)
        text = f"{_day(days)} {minutes // 60:02}:{minutes % 60:02}:{second:02}"
        fraction = f".{nanos:09}".removesuffix("000") if nanos else ""
        return text + fraction + ("+00:00" if self.type.tz else "")

    def __repr__(self) -> str:
        return f"nyala.FarTime({str(self)!r})"


def _day(days: int) -> str:
    """Format a day as in ISO 8601, with more year digits or a sign if needed."""
    cycles, rest = divmod(days, _DAYS_OF_400_YEARS)
    near = _EPOCH + timedelta(days=rest)
    year = near.year + 400 * cycles
    return f"{'-' if year < 0 else ''}{abs(year):04}-{near:%m-%d}"
