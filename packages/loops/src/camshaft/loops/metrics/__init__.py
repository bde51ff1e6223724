"""The metric log: what modules and callbacks log, reduced over batches and ranks."""
