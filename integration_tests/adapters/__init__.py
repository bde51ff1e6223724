"""What the loops run on the strategies of the examples, which adapt other libraries."""
