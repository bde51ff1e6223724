"""State of a run: progress, random numbers, metrics of modules, callbacks."""
