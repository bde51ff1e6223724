"""The arguments that trainers of earlier releases took, as those of today."""
