"""Looking into one training step: statistics of submodules, and captures of steps that went wrong."""
