"""What `DDPStrategy` is made of."""
