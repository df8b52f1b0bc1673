"""All groups of one process together: the event loop, ticks, messages, failure detection, the log's disk."""
