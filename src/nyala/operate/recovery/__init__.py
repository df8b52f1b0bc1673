"""Recovery of what is lost for good."""
