"""Loaders: shared between processes, combined, and resumed."""
