"""Averages of weights, and groups of parameters."""
