"""Bound on the log lines of a port, so that strangers do not fill the disk of the log."""

import logging

from nyala.wire.tls.bounded_lines import WINDOW_S, BoundedLines


class Lines(logging.Handler):
    """Keeps lines."""

    def __init__(self):
        super().__init__()
        self.found = []

    def emit(self, record):
        self.found.append(record.getMessage())


def logged(bound, times_s, level=logging.WARNING):
    """Return the lines of records that were made at some times."""
    logger, lines = logging.Logger("port"), Lines()
    logger.addFilter(bound)
    logger.addHandler(lines)
    for number, at_s in enumerate(times_s):
        record = logger.makeRecord("port", level, "", 0, "line %d", (number,), None)
        record.created = at_s
        logger.handle(record)
    return lines.found


def test_lines_above_the_bound_are_counted_in_the_next_minute():
    found = logged(BoundedLines(3), [1000.0] * 10 + [1000 + WINDOW_S, 1001 + WINDOW_S])
    assert found == [
        "line 0", "line 1", "line 2", "line 10 (and 7 lines before it, which were not logged)", "line 11",
    ]  # fmt: skip


def test_clock_that_goes_back_does_not_end_the_lines():
    assert len(logged(BoundedLines(3), [1000.0] * 5 + [10.0] * 2)) == 5


def test_errors_of_the_process_are_always_logged():
    assert len(logged(BoundedLines(3), [1000.0] * 10, logging.ERROR)) == 10


def test_ports_to_which_strangers_connect_have_the_bound():
    from nyala.web import access
    from nyala.wire import connection, peer_server, stream_server
    from nyala.wire.tls import join_port

    for module in (access, connection, peer_server, stream_server, join_port):
        kinds = [type(f) for f in logging.getLogger(module.__name__).filters]
        assert kinds == [BoundedLines], module.__name__
