"""Callbacks that log learning rates, throughput and device statistics, or check losses."""
