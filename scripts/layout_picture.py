"""Writes docs/internals/layout.svg: packages and files of two commits, side by side.

python scripts/layout_picture.py BEFORE AFTER
"""

import subprocess
import sys
from collections import Counter
from html import escape
from pathlib import Path, PurePosixPath

PAGE = Path(__file__).parent.parent / "docs" / "internals" / "layout.svg"
SOURCE = PurePosixPath("src/nyala")
MAX_FILES = 15
COLUMN, LINE, FILE, NAMES = 620, 16, 8, 110
"""Width of a column, height of a line, width of a file, and of the names, in pixels."""


def folders(revision: str) -> Counter[str]:
    """Return the number of Python files of each folder below src/nyala, without `__init__.py`."""
    listed = subprocess.run(
        ["git", "ls-tree", "-r", "--name-only", revision, str(SOURCE)],
        capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    paths = [PurePosixPath(p).relative_to(SOURCE) for p in listed if p.endswith(".py")]
    return Counter(str(p.parent) for p in paths if p.name != "__init__.py" and p.parent.name)


def column(title: str, files: Counter[str], left: int) -> list[str]:
    """Return the SVG elements of one commit: a line for each folder, a box for each file."""
    parts = [f'<text x="{left}" y="24" font-weight="bold">{escape(title)}</text>']
    for number, folder in enumerate(sorted(files)):
        top = 48 + number * LINE
        indent = 14 * folder.count("/")
        color = "#b3402a" if files[folder] > MAX_FILES else "#44698c"
        name = folder.rpartition("/")[2]
        parts.append(f'<text x="{left + indent}" y="{top}">{escape(name)} {files[folder]}</text>')
        parts += [
            f'<rect x="{left + NAMES + FILE * n}" y="{top - 10}" width="{FILE - 2}" height="11" '
            f'fill="{color}"/>'
            for n in range(files[folder])
        ]
    return parts


def picture(before: str, after: str) -> str:
    """Return the picture as SVG."""
    sides = [folders(before), folders(after)]
    titles = [f"before, {before}", f"after, {after}"]
    height = 72 + LINE * max(len(side) for side in sides)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {2 * COLUMN + 60} {height}" '
        'font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for number, (title, files) in enumerate(zip(titles, sides, strict=True)):
        parts += column(title, files, 20 + number * COLUMN)
    note = f"one box for each file; red: a folder with more than {MAX_FILES} files"
    return "\n".join([*parts, f'<text x="20" y="{height - 10}">{note}</text>', "</svg>"]) + "\n"


if __name__ == "__main__":
    PAGE.write_text(picture(*sys.argv[1:3]))
