"""Open scans of a tablet server: their memory, and the share of each user."""
