"""Callbacks that find settings by trial steps before training."""
