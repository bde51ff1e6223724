"""Watching losses without waiting for the device."""
