"""TODO: what progress holds."""
