"""Checkpoints on disk: files, directories of sharded state, and writing them while training goes on."""
