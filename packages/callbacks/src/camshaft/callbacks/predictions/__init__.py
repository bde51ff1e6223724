"""Writers of predictions, and their files."""
