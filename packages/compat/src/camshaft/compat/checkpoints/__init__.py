"""Reading checkpoints of earlier releases, and the states of callbacks and hyperparameters in them."""
