"""Ledgers of runs: what each update did, to the bit, and the comparison of two runs."""
