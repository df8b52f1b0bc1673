"""Writer of docs/operate/options.md, from `common/options.py`. Run it after changing an option."""

from pathlib import Path

from nyala.common.options import describe

PAGE = Path(__file__).parent.parent / "docs" / "operate" / "options.md"
HEAD = """# Options of a server

The options of `nyala master run` and `nyala tserver run`; a name ends with its unit. A flag
(`--set name=value`) overrides the environment (`NYALA_<NAME>`), which overrides the TOML file
(`--config FILE`), which overrides the default. `nyala config list` prints the same list.
`scripts/options_page.py` writes this page.

| Option | Default | Limits | Meaning |
|---|---|---|---|
"""


def page() -> str:
    """Return the text of the page."""
    rows = [
        f"| `{d.name}` | {d.default} | {d.limits.replace('|', ' or ')} | {d.description} |\n"
        for d in describe()
    ]
    return HEAD + "".join(rows)


if __name__ == "__main__":
    PAGE.write_text(page())
