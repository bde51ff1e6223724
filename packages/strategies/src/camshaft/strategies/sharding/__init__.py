"""Sharding of modules: policies, meshes, layouts, steps, and initialization without memory for whole parameters."""
