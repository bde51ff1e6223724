"""Parts of `benchmarks/callback_overhead.py`, which measures what each stock callback adds to a training step."""
