"""Page of the threads of this process, with where each of them is."""

import sys
import threading
import traceback

from nyala.web.pages import Listing

FRAMES = 4
"""Number of frames that are shown of each thread, the innermost ones."""


def threads_page() -> Listing:
    """Return the page of the threads of this process, by name."""
    frames = sys._current_frames()
    rows = []
    for thread in sorted(threading.enumerate(), key=lambda t: t.name):
        frame = frames.get(thread.ident or 0)
        stack = [] if frame is None else traceback.extract_stack(frame)[-FRAMES:]
        where = " > ".join(f"{f.filename.rpartition('/')[2]}:{f.lineno} {f.name}" for f in stack)
        rows.append((thread.name, str(thread.native_id or ""), where))
    return Listing("threads", ("name", "thread id", "innermost calls"), rows)
