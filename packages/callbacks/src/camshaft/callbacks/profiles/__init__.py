"""What `Profiler` writes."""
