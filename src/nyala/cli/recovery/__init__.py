"""Commands for what is lost for good."""
