"""Dispatch: receivers become the hooks of a run."""
