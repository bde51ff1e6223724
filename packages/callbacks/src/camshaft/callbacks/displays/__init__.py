"""What progress bars and summaries look like, and where they are drawn."""
