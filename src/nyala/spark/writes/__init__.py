"""Writes of jobs and streams: options, tasks, commits."""
