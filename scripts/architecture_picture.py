"""Writes docs/architecture.svg from the text below. Run it after a change; a test compares the file."""

from html import escape
from pathlib import Path

PAGE = Path(__file__).parent.parent / "docs" / "architecture.svg"
WIDTH, HEIGHT = 900, 560
CLIENTS = (
    "Clients",
    "client: Python and SQL   ·   spark: Spark jobs   ·   any Arrow Flight client",
)
TSERVERS = (
    "Tablet servers (one or more)",
    ("tserver", "write path, scans, look-ups, reports"),
    ("replica", "one member of each tablet's Raft group"),
    ("raft", "consensus, without I/O"),
    ("wal", "one write-ahead log for all groups"),
    ("tablet", "rows: columnar, multi-version"),
)
MASTERS = (
    "Masters (an odd number)",
    ("master", "DDL, placement, repair, orders"),
    ("replica", "one member of the masters' Raft group"),
    ("raft", "consensus, without I/O"),
    ("wal", "write-ahead log"),
    ("tablet", "rows of the catalog"),
)
ARROWS = (  # from x, y; to x, y; label: x, y, lines
    ((220, 92), (220, 168), (232, 126, ("rows in and out:", "Arrow Flight, stream port"))),
    ((680, 92), (680, 168), (692, 126, ("tables, tablet locations:", "gRPC"))),
    ((402, 290), (498, 290), (450, 282, ("reports",))),
    ((498, 340), (402, 340), (450, 332, ("orders",))),
)
NOTE = "Servers of one kind exchange Raft messages on the peer port, and copies of replicas by RPC."


def picture() -> str:
    """Return the picture as SVG."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}"'
        ' font-family="sans-serif" font-size="14" role="img" aria-label="Architecture of nyala">',
        '<defs><marker id="head" markerWidth="9" markerHeight="8" refX="8" refY="4" orient="auto">'
        '<path d="M0,0 L9,4 L0,8 z" fill="#444"/></marker></defs>',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        _box(40, 20, 820, 72, "#e8f0fa"),
        _text(450, 48, CLIENTS[0], bold=True),
        _text(450, 74, CLIENTS[1]),
        *_server(40, TSERVERS, "#eaf5ea"),
        *_server(500, MASTERS, "#fdf1e3"),
    ]
    for (x1, y1), (x2, y2), (x, y, lines) in ARROWS:
        parts.append(
            f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="#444" stroke-width="1.5"'
            ' marker-end="url(#head)"/>'
        )
        anchor = "middle" if y1 == y2 else "start"
        parts += [_text(x, y + 18 * n, line, anchor=anchor) for n, line in enumerate(lines)]
    parts += [_text(450, 540, NOTE), "</svg>"]
    return "\n".join(parts) + "\n"


def _server(left: int, rows: tuple[str | tuple[str, str], ...], fill: str) -> list[str]:
    parts = [_box(left + d, 170 + d, 340, 330, fill) for d in (20, 10, 0)]
    parts.append(_text(left + 170, 198, str(rows[0]), bold=True))
    for n, (name, what) in enumerate(row for row in rows[1:] if isinstance(row, tuple)):
        top = 214 + n * 56
        parts += [
            _box(left + 16, top, 308, 48, "white"),
            _text(left + 28, top + 20, name, bold=True, anchor="start"),
            _text(left + 28, top + 39, what, anchor="start"),
        ]
    return parts


def _box(x: int, y: int, width: int, height: int, fill: str) -> str:
    return f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="6" fill="{fill}" stroke="#444"/>'


def _text(x: int, y: int, text: str, *, bold: bool = False, anchor: str = "middle") -> str:
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}"{weight}>{escape(text)}</text>'


if __name__ == "__main__":
    PAGE.write_text(picture())
