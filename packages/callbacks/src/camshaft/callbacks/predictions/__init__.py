"""Callbacks that write predictions."""
