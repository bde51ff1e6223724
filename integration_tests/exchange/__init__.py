"""Checkpoints that one strategy writes and another one, in other processes, reads: the script of the ranks."""
