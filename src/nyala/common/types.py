"""Column types: names, Arrow types, and the accepted variants."""

import re
from collections.abc import Mapping

import pyarrow as pa

from nyala.common.errors import InvalidArgument

_PLAIN: Mapping[str, pa.DataType] = {
    "bool": pa.bool_(),
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp[us]": pa.timestamp("us"),
    "timestamp[us,UTC]": pa.timestamp("us", "UTC"),
}
_TYPES = ", ".join([*_PLAIN, "decimal(precision,scale)"])
_NAMES = {arrow: name for name, arrow in _PLAIN.items()}
_ALIASES: Mapping[pa.DataType, pa.DataType] = {
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
}
MAX_CELL_BYTES = 64 << 10
"""Maximum bytes of one string or binary value, as Kudu's limit on cells."""
_SHORT_NUMBER = re.compile("[0-9]{1,2}")


def type_name(arrow: pa.DataType) -> str:
    """Return the name of an Arrow type.

    Raises:
        InvalidArgument: an unsupported type.
    """
    if pa.types.is_decimal128(arrow) and 0 <= arrow.scale <= arrow.precision:
        return f"decimal({arrow.precision},{arrow.scale})"
    if not _is_extension(arrow) and arrow in _NAMES:
        return _NAMES[arrow]
    raise InvalidArgument(
        f"Arrow type {arrow} is not supported; cast the column to one of: {_TYPES}"
    )


def plain_type(arrow: pa.DataType) -> pa.DataType:
    """Return the stored type of an accepted variant (large_string, string_view, dictionary, ...)."""
    if pa.types.is_dictionary(arrow):
        return plain_type(arrow.value_type)
    return arrow if _is_extension(arrow) else _ALIASES.get(arrow, arrow)


def _is_extension(arrow: pa.DataType) -> bool:
    return isinstance(arrow, pa.BaseExtensionType)  # a user-defined one may not be hashable


def arrow_type(name: str) -> pa.DataType:
    """Return the Arrow type of a name; the inverse of `type_name`."""
    if name in _PLAIN:
        return _PLAIN[name]
    if name.startswith("decimal(") and name.endswith(")"):
        precision, _, scale = name[len("decimal(") : -1].partition(",")
        if _SHORT_NUMBER.fullmatch(precision) and _SHORT_NUMBER.fullmatch(scale):
            digits, after_point = int(precision), int(scale)
            if after_point <= digits <= 38 and digits > 0:
                return pa.decimal128(digits, after_point)
    raise InvalidArgument(f"unknown column type {name[:80]!r}; write one of: {_TYPES}")
