"""Callbacks that log or guard what a run does: rates, losses, devices, throughput."""
