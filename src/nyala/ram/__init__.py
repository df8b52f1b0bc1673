"""The ensemble: a coordinator whose state is in a log, and its servers; see docs/internals/coordinator.md."""
