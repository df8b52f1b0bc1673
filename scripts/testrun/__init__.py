"""Parts of scripts/test.py."""
