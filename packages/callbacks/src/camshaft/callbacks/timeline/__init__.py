"""What a timeline of hooks records, and its reports."""
