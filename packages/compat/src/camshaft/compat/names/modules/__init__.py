"""Earlier names of modules: metrics, and the demos' boring classes."""
