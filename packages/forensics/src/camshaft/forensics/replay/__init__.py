"""Replays: a fit made again up to a step, a captured step, and the search for a step."""
