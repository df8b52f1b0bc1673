"""Systems under simulation: Raft's core, the replica engine, whole clusters."""
