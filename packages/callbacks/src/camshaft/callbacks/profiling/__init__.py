"""Callbacks that show where time goes."""
