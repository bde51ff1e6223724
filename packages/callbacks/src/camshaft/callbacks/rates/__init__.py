"""How much work is done per second."""
