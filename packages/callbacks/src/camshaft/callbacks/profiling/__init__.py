"""TODO: what profiling holds."""
