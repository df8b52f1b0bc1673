"""The raw CSV files in DuckDB, and what the tables must hold, computed from them without Spark or nyala.

The change stream is told here a second time, in SQL, so that a mistake in the pipeline's telling shows.
"""

import lzma
from pathlib import Path

import duckdb
import pyarrow as pa

from nyala.spark.flights.dataset import DIMENSIONS, SHIPPED

NAMES = ("flights", *DIMENSIONS)

EVENTS = """
create table events as
with flight as (select *, time_hour + to_minutes(minute) as scheduled from flights),
happened as (
    select *, 'schedule' as kind, scheduled - interval 24 hours as moment from flight
    union all select *, 'departure', scheduled + to_minutes(dep_delay) from flight where dep_time is not null
    union all select *, 'arrival', scheduled + to_minutes(dep_delay) + to_minutes(coalesce(air_time, 180))
              from flight where arr_time is not null
    union all select *, 'cancellation', scheduled from flight where dep_time is null
),
hashed as (
    select *, ('0x' || left(md5(concat_ws('|', carrier, flight::varchar, origin,
        epoch(time_hour)::bigint::varchar, kind)), 8))::bigint as h
    from happened
)
select *, moment + to_seconds(case when h % 50 = 0 then (h // 50) % 21600 + 1 else 0 end) as delivered
from hashed
"""

FOLD = """
with delivered as (
    select carrier, flight, origin, time_hour,
        bool_or(kind = 'schedule') as s, bool_or(kind = 'departure') as d,
        bool_or(kind = 'arrival') as a, bool_or(kind = 'cancellation') as c
    from events where epoch_us(delivered) < ? group by all
)
select time_hour, carrier, flight, origin, year, month, day, sched_dep_time,
    if(d, dep_time, null) as dep_time,
    if(d, dep_delay, null) as dep_delay, if(a, arr_time, null) as arr_time, sched_arr_time,
    if(a, arr_delay, null) as arr_delay, tailnum, dest, if(a, air_time, null) as air_time, distance, hour,
    minute, c as cancelled
from delivered join flights using (carrier, flight, origin, time_hour) where s
"""

STATISTICS = """
select cast(time_hour as date) as day, carrier, origin, count(*) as flights,
    count(*) filter (dep_time is null) as cancelled, count(arr_delay) as arrivals,
    cast(coalesce(sum(arr_delay), 0) as bigint) as delay_minutes
from flights group by all
"""


class Raw:
    """The raw files of one folder.

    Args:
        folder: with `<name>.csv` or `<name>.csv.xz`; None: the year that ships with nyala.
        scratch: where packed files are unpacked.
    """

    def __init__(self, folder: Path | None, scratch: Path) -> None:
        self._engine = duckdb.connect(":memory:")
        self._engine.execute("set threads = 1").fetchall()
        scratch.mkdir(parents=True, exist_ok=True)
        for name in NAMES:
            path = (folder or SHIPPED) / f"{name}.csv"
            packed = path.with_suffix(".csv.xz")
            if not path.exists():
                path = scratch / f"{name}.csv"
                path.write_bytes(lzma.decompress(packed.read_bytes()))
            self._engine.execute(
                f"create table {name} as select * from read_csv('{path}', nullstr = 'NA', "
                "types = {'time_hour': 'TIMESTAMP'})"
                if name in ("flights", "weather")
                else f"create table {name} as select * from read_csv('{path}', nullstr = 'NA')"
            ).fetchall()
        self._engine.execute(EVENTS).fetchall()

    def operations(self) -> int:
        """Return how many changes the flights were."""
        return int(self._engine.execute("select count(*) from events").fetchall()[0][0])

    def after(self, until_us: int) -> pa.Table:
        """Return the flights table once every event delivered before a time has been applied."""
        return self._engine.sql(FOLD, params=[until_us]).to_arrow_table()

    def final(self, name: str) -> pa.Table:
        """Return a table as it must be at the end: the raw rows; cancelled is: never departed."""
        extra = ", dep_time is null as cancelled" if name == "flights" else ""
        return self._engine.sql(f"select *{extra} from {name}").to_arrow_table()

    def statistics(self) -> pa.Table:
        """Return the delay statistics as they must be at the end."""
        return self._engine.sql(STATISTICS).to_arrow_table()

    def close(self) -> None:
        """Let go of the data."""
        self._engine.close()
