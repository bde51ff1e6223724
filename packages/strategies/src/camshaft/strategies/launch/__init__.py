"""Processes: how they are started, meet, and notice that one failed."""
