"""All groups of one process: event loop, ticks, messages, failure detection, retention of the log."""
