"""Modules of earlier eras on two ranks, and the scripts that these run."""
