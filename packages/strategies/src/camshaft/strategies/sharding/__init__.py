"""TODO: what sharding holds."""
