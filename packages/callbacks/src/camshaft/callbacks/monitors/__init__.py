"""TODO: what monitors holds."""
