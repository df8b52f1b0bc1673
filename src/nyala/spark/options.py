"""Options of the data source that batch reads, streams and writes have in common, and their checks."""

import difflib
import os
from collections.abc import Collection, Mapping

from nyala.client.calls.connecting import ENVIRONMENT
from nyala.client.hold import MAX_S
from nyala.common.errors import InvalidArgument

HOLD_S = 3600


def where(options: Mapping[str, str]) -> tuple[str, str]:
    """Return table and masters of some options.

    Raises:
        InvalidArgument: the table is not named, or no master.
    """
    table = options.get("table", "")
    if not table:
        raise InvalidArgument(
            'name the table: .option("table", "metrics"), or in SQL create temporary view v using nyala '
            "options (table 'metrics'); of create table Spark passes no options to a Python source"
        )
    return table, masters_of(options.get("masters", ""))


def masters_of(given: str | None) -> str:
    """Return the addresses of masters that were given, or those of the environment.

    Raises:
        InvalidArgument: there are none.
    """
    masters = given or os.environ.get(ENVIRONMENT, "")
    if not masters:
        raise InvalidArgument(
            'name the masters: .option("masters", "host:7051,..."), masters="host:7051,..." or NYALA_MASTERS'
        )
    return masters


def split(names: str) -> list[str]:
    """Return the names in a list by commas."""
    return [n.strip() for n in names.split(",") if n.strip()]


def hold_s(options: Mapping[str, str]) -> int:
    """Return the seconds for which history is held; 0: it is not.

    Raises:
        InvalidArgument: no such number.
    """
    text = options.get("hold_s", str(HOLD_S))
    if not text.isdecimal() or int(text) > MAX_S:
        raise InvalidArgument(f"option hold_s={text!r}: seconds, at most {MAX_S}; 0: no hold")
    return int(text)


def split_bytes(options: Mapping[str, str], default: int = 0) -> int:
    """Return the approximate bytes of a partition.

    Args:
        options: of a read.
        default: without the option; 0: a partition is a tablet.

    Raises:
        InvalidArgument: no positive number.
    """
    text = options.get("split_bytes", "")
    if text and (not text.isdecimal() or not 0 < int(text) < 1 << 63):
        raise InvalidArgument(
            f"option split_bytes={text!r}: a positive number of bytes, for instance {64 << 20}; "
            f"left out: {f'about {default}' if default else 'one partition per tablet'}"
        )
    return int(text or default)


def flag(options: Mapping[str, str], name: str, default: bool) -> bool:
    """Return an option that is true or false.

    Args:
        options: as Spark gives them.
        name: of the option.
        default: without the option.

    Raises:
        InvalidArgument: it is neither.
    """
    text = options.get(name, str(default)).lower()
    if text not in ("true", "false"):
        raise InvalidArgument(f"option {name}={text!r}: write true or false")
    return text == "true"


def check_known(options: Mapping[str, str], known: Collection[str], use: str) -> None:
    """Refuse options that have no meaning, which are misspelt or belong to something else.

    Args:
        options: as Spark gives them.
        known: names of those with a meaning.
        use: of the data source, for instance "a stream".

    Raises:
        InvalidArgument: names the option, and the most similar one of those known.
    """
    for name in options:
        if name.lower() in known:
            continue
        near = difflib.get_close_matches(name.lower(), sorted(known), 1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise InvalidArgument(
            f"option {name!r}{hint} has no meaning for {use}; its options are: {', '.join(sorted(known))}"
        )
