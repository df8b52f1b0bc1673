"""`nyala journal`: commands about journals, their logs and their keys."""
