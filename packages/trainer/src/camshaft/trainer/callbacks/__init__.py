"""Callbacks that arguments of the trainer add."""
