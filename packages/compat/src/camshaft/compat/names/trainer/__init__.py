"""Earlier names of what a trainer is given: callbacks, loggers, profilers, the tuner, the command line."""
