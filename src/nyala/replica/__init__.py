"""A replica: Raft's core, the log and a state machine joined; it knows neither tablets nor the wire."""
