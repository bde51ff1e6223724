"""Names, files and memory of checkpoints."""
