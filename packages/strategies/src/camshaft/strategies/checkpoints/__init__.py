"""Checkpoints on disk: one file or a directory, their contents, and asynchronous saving."""
