"""Signals of the operating system and of job schedulers."""
