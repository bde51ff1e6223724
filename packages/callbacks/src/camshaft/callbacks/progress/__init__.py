"""Progress bars and summaries of a model."""
