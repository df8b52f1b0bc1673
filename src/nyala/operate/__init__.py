"""The operators' library: cluster checks, changes of members, recovery. The command line calls it."""
