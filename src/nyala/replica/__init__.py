"""A replica: Raft's core, the log and a state machine combined; independent of tablets and wire."""
