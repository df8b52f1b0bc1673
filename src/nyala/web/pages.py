"""The pages of the web port: values in, HTML out. Every value is escaped; table names are hostile."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape


@dataclass(frozen=True, slots=True)
class Listing:
    """A page that is one table.

    Attributes:
        title: of the page.
        headings: of its columns.
        rows: a text for each column.
    """

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]


def listing(title: str, shown: Listing) -> str:
    """Return the page of a listing of a process with a title."""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in shown.headings)
    rows = "\n".join(
        "<tr>" + "".join(f"<td>{escape(text)}</td>" for text in row) + "</tr>" for row in shown.rows
    )
    name = escape(f"{shown.title} of {title}")
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{name}</title>'
        f"</head>\n<body><h1>{name}</h1>\n<table>\n<tr>{head}</tr>\n{rows}\n</table>\n"
        f"<p>{_link('overview', '/')}</p></body></html>\n"
    )


def overview(
    title: str, sick: str | None, values: Mapping[str, str], links: Mapping[str, str]
) -> str:
    """Return the first page of a process.

    Args:
        title: of the page.
        sick: why the process does not serve; None: it does.
        values: facts by name.
        links: address by text; only http(s) and local ones become links.
    """
    state = f"not serving: {sick}" if sick else "serving"
    rows = "\n".join(
        f'<tr><th scope="row">{escape(name)}</th><td>{escape(value)}</td></tr>'
        for name, value in {"state": state, **values}.items()
    )
    own = {"health": "/healthz", "metrics": "/metrics"}
    items = "\n".join(f"<li>{_link(text, to)}</li>" for text, to in {**own, **links}.items())
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f"</head>\n<body><h1>{escape(title)}</h1>\n<table>\n{rows}\n</table>\n"
        f"<ul>\n{items}\n</ul></body></html>\n"
    )


def _link(text: str, to: str) -> str:
    if to.startswith(("http://", "https://", "/")):
        return f'<a href="{escape(to)}">{escape(text)}</a>'
    return f"{escape(text)}: {escape(to)}"
