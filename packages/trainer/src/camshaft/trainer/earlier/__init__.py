"""What code of earlier releases needs of a trainer: arguments, attributes, forms of calls, checkpoints."""
