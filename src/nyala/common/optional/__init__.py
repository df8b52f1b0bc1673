"""Libraries that a user's program may have, and that nyala does not need."""
