"""The environment of a process as parameters: clock, random source, files, tasks, RPC."""
