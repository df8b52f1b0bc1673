"""The way of a record to the log: admission, the queue, and the thread that writes and syncs."""
