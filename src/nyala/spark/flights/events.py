"""Raw flights to change events, in Spark: what became known of each flight, and when.

| kind | op | when | its columns |
|---|---|---|---|
| schedule | upsert | 24 h before the scheduled departure | the plan of the flight |
| departure | update_ignore | scheduled departure + dep_delay | dep_time, dep_delay |
| arrival | update_ignore | departure + air_time (missing: 3 h) | arr_time, arr_delay, air_time |
| cancellation | update_ignore | scheduled departure | cancelled |

Every 50th event by key hash is delivered up to six hours after it happened.
"""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as f

from nyala.spark.flights.dataset import KEYS

KEY = KEYS["flights"]
PLANNED = (
    "year", "month", "day", "sched_dep_time", "sched_arr_time", "tailnum", "dest", "distance", "hour",
    "minute",
)  # fmt: skip
KINDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "schedule": ("upsert", PLANNED),
    "departure": ("update_ignore", ("dep_time", "dep_delay")),
    "arrival": ("update_ignore", ("arr_time", "arr_delay", "air_time")),
    "cancellation": ("update_ignore", ("cancelled",)),
}
"""Per kind: the write and the columns that it carries beside the key; in order of happening."""
LATE_EVERY, LATE_MAX_S = 50, 6 * 3600
_NO_AIR_TIME_MINUTES = 180


def change_stream(flights: DataFrame) -> DataFrame:
    """Return one row per event: key, `kind`, `rank`, `happened`, `delivered`, and every column.

    Columns that a kind does not carry are null and are not written.
    """
    scheduled = f.col("time_hour") + f.make_dt_interval(mins=f.col("minute"))
    departed = scheduled + f.make_dt_interval(mins=f.col("dep_delay"))
    airborne = f.coalesce(f.col("air_time"), f.lit(_NO_AIR_TIME_MINUTES))
    happened = {
        "schedule": scheduled - f.make_dt_interval(hours=f.lit(24)),
        "departure": departed,
        "arrival": departed + f.make_dt_interval(mins=airborne),
        "cancellation": scheduled,
    }
    condition = {
        "schedule": f.lit(True),
        "departure": f.col("dep_time").isNotNull(),
        "arrival": f.col("arr_time").isNotNull(),
        "cancellation": f.col("dep_time").isNull(),
    }
    events = [
        f.when(
            condition[kind],
            f.struct(
                f.lit(kind).alias("kind"),
                f.lit(rank).alias("rank"),
                happened[kind].alias("happened"),
            ),
        )
        for rank, kind in enumerate(KINDS)
    ]
    exploded = flights.withColumn("cancelled", f.lit(True)).select(
        "*", f.explode(f.array_compact(f.array(*events))).alias("event")
    )
    return exploded.select("*", "event.*").drop("event").withColumn("delivered", _delivered())


def _delivered() -> "f.Column":
    """Return when an event reaches the stream: at once, or up to six hours late."""
    name = f.concat_ws(
        "|",
        *(f.col(k) for k in ("carrier", "flight", "origin")),
        f.unix_timestamp("time_hour"),
        "kind",
    )
    hashed = f.conv(f.substring(f.md5(name.cast("binary")), 1, 8), 16, 10).cast("bigint")
    late_s = f.pmod(f.floor(hashed / LATE_EVERY), f.lit(LATE_MAX_S)) + 1
    late = f.pmod(hashed, f.lit(LATE_EVERY)) == 0
    return f.col("happened") + f.make_dt_interval(secs=f.when(late, late_s).otherwise(f.lit(0)))


def by_key(events: DataFrame, partitions: int) -> DataFrame:
    """Return the events with all those of one key in one partition."""
    return events.repartition(partitions, *KEY)


def in_delivery_order(events: DataFrame) -> DataFrame:
    """Return events that are partitioned `by_key` ready to be written, with few changes of kind.

    Within a partition all first events of their keys come before all second ones, and so on (`turn`):
    each key's in the order of their delivery. Within a turn rows of one kind are adjacent. A total
    order, so that a task that Spark runs again writes the same rows in the same order.
    """
    of_key = Window.partitionBy(*KEY).orderBy("delivered", "rank")
    return events.withColumn("turn", f.row_number().over(of_key)).sortWithinPartitions(
        "turn", "rank", "delivered", *KEY
    )
