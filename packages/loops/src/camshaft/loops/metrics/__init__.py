"""TODO: what metrics holds."""
