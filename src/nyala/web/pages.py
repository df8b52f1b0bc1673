"""The pages of the web port: values in, HTML out. Every value is escaped; table names are hostile."""

from collections.abc import Mapping
from html import escape


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
