"""Training: the fit loop, its epochs, its limits and its resume."""
