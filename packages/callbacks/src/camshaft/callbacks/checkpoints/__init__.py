"""Callbacks that save checkpoints."""
