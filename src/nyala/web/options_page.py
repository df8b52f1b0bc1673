"""Page of the options of this process."""

from nyala.common.options import Options, describe
from nyala.web.pages import Listing


def options_page(options: Options) -> Listing:
    """Return the page of all options, with those that differ from their defaults first."""
    values = [(d, getattr(options, d.name)) for d in describe()]
    rows = [
        (d.name, str(value), str(d.default), "yes" if value != d.default else "no")
        for d, value in values
    ]
    rows.sort(key=lambda row: row[3] == "no")
    return Listing("options", ("name", "value", "default", "differs"), rows)
