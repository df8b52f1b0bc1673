"""Ctrl-C during a call of a client, sent once the call waits."""

import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.waiting import wait_until


def waits() -> bool:
    """Return whether the main thread waits in a call of a client."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    files = []
    while frame is not None:
        files.append(Path(frame.f_code.co_filename).name)
        frame = frame.f_back
    return files[:1] == ["threading.py"] and "loop_thread.py" in files


def interrupt(call: Callable[[], object]) -> None:
    """Send SIGINT to this process when the call waits; it has to end by KeyboardInterrupt."""

    def send() -> None:
        wait_until(waits, "the call waits for the servers")
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            call()
    finally:
        thread.join()
