"""Earlier names of functions, flags, types and exceptions."""
