"""Run code that was written for Lightning 0.4 to 1.9, and libraries that import Lightning's names."""
