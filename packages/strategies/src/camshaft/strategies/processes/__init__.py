"""Several processes: who they are, how they start, what they tell each other, how they fail together."""
