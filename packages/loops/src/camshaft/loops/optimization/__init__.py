"""Optimization: from a batch to an update, and when learning rates change."""
