"""Progress bars and model summaries."""
