"""HTML pages of the web port. Every value is escaped, because table names may be hostile."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

STYLE = """\
:root { color-scheme: light dark; --line: #8884; --quiet: #888; --well: #1a7f37; --unhealthy: #cf222e }
body { font: 15px/1.45 system-ui, sans-serif; margin: 1.5rem auto; max-width: 90rem; padding: 0 1rem }
h1 { font-size: 1.25rem; overflow-wrap: anywhere }
nav { display: flex; flex-wrap: wrap; gap: .3rem 1.2rem; margin: 1rem 0 }
main { overflow-x: auto }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { border-bottom: 1px solid var(--line); padding: .3rem 1.2rem .3rem 0; vertical-align: top }
th, td { text-align: left }
td { overflow-wrap: break-word }
.facts td { overflow-wrap: anywhere }
th { color: var(--quiet); font-weight: 500; white-space: nowrap }
.well { color: var(--well) }
.unhealthy { color: var(--unhealthy); font-weight: 600 }
.none { color: var(--quiet) }
""" + "".join(f".number-{n} tr > :nth-child({n}) {{ text-align: right }}\n" for n in range(1, 33))
"""Style sheet of all pages, served as a file: pages have no inline style, so that none can be injected."""


@dataclass(frozen=True, slots=True)
class Listing:
    """A page that is one table.

    Attributes:
        title: title of the page.
        headings: headings of its columns.
        rows: a text for each column.
    """

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]

    def as_dict(self) -> dict[str, object]:
        """Return it for JSON: the rows as objects, with a text for each heading."""
        rows = [dict(zip(self.headings, row, strict=True)) for row in self.rows]
        return {"title": self.title, "rows": rows}


def listing(title: str, shown: Listing) -> str:
    """Return the page of a listing."""
    numbers = " ".join(
        f"number-{n}"
        for n in range(1, len(shown.headings) + 1)
        if shown.rows and all(_is_number(row[n - 1]) for row in shown.rows)
    )
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in shown.headings)
    rows = "\n".join(
        "<tr>" + "".join(f"<td>{escape(text)}</td>" for text in row) + "</tr>" for row in shown.rows
    )
    nothing = "" if shown.rows else '<p class="none">none</p>\n'
    return _page(
        f"{shown.title} of {title}",
        f"<table{_class(numbers, numbers != '')}>\n<tr>{head}</tr>\n{rows}\n</table>\n{nothing}",
        {"overview": "/"},
    )


def overview(
    title: str, unavailable_reason: str | None, values: Mapping[str, str], links: Mapping[str, str]
) -> str:
    """Return the first page of a process.

    Args:
        title: title of the page.
        unavailable_reason: why the process does not serve; None if it serves.
        values: by name.
        links: URL by text; only http(s) and local URLs become links.
    """
    state = f"not serving: {unavailable_reason}" if unavailable_reason else "serving"
    mark = "unhealthy" if unavailable_reason else "well"
    rows = "\n".join(
        f'<tr><th scope="row">{escape(name)}</th><td{_class(mark, at == 0)}>{escape(value)}</td></tr>'
        for at, (name, value) in enumerate({"state": state, **values}.items())
    )
    own = {"health": "/healthz", "metrics": "/metrics"}
    return _page(title, f'<table class="facts">\n{rows}\n</table>\n', {**own, **links})


def refusal(title: str, path: str, reason: str, elsewhere: str) -> str:
    """Return the page that says why a process does not have a page.

    Args:
        title: title of the process.
        path: of the page.
        reason: why.
        elsewhere: URL of the page at another server; empty: none is known.
    """
    links = {"overview": "/"} | ({"this page of the leader master": elsewhere} if elsewhere else {})
    return _page(f"{path} of {title}", f"<p>{escape(reason)}</p>\n", links)


def message(title: str, body: str) -> str:
    """Return a page without links.

    Args:
        title: title of the page.
        body: HTML.
    """
    return _page(f"nyala: {title}", f"{body}\n", {})


def _page(title: str, body: str, links: Mapping[str, str]) -> str:
    name = escape(title)
    items = "\n".join(_link(text, to) for text, to in links.items())
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{name}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<link rel="stylesheet" href="/style.css"></head>\n'
        f"<body><h1>{name}</h1>\n<nav>\n{items}\n</nav>\n<main>\n{body}</main></body></html>\n"
    )


def _class(name: str, wanted: bool) -> str:
    return f' class="{name}"' if wanted else ""


def _is_number(text: str) -> bool:
    return text.replace(".", "", 1).replace(",", "").isdecimal()


def _link(text: str, to: str) -> str:
    if to.startswith(("http://", "https://", "/")):
        return f'<a href="{escape(to)}">{escape(text)}</a>'
    return f"<span>{escape(text)}: {escape(to)}</span>"
