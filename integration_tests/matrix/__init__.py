"""The same training on every strategy, in every precision: the cases, and the script that its ranks run."""
