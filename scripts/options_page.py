"""Writes docs/operate/options.md from `common/options.py`. Run it after changing an option."""

from pathlib import Path

from nyala.common.options import describe

PAGE = Path(__file__).parent.parent / "docs" / "operate" / "options.md"
HEAD = """# Options of a server

Every tunable of `nyala master run` and `nyala tserver run`. A name ends with its unit. Precedence: a flag
(`--set name=value`) before the environment (`NYALA_<NAME>`) before the TOML file (`--config FILE`) before
the default. `nyala config list` prints the same list. This page is written by `scripts/options_page.py`.

| name | default | limits | what it is for |
|---|---|---|---|
"""


def page() -> str:
    """Return the text of the page."""
    rows = [f"| `{d.name}` | {d.default} | {d.limits} | {d.sentence} |\n" for d in describe()]
    return HEAD + "".join(rows)


if __name__ == "__main__":
    PAGE.write_text(page())
