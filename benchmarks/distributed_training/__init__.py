"""What frameworks add to a step of distributed training, and the adapters through which they are measured."""
