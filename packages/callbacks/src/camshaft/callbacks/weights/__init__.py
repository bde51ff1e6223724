"""Callbacks that average, freeze or unfreeze weights."""
