"""Models that are built without memory, and initialised shard by shard as their own code would have done it."""
