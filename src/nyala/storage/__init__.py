"""Files that state machines of every kind share: containers of sections, flush points, checkpoints."""
