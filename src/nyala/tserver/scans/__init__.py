"""Open scans of a tablet server, and their memory."""
