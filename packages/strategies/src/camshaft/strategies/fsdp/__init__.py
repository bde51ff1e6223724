"""What `ShardedStrategy` is made of."""
