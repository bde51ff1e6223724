"""Loggers, and what they share."""
