"""Sharding of models: policies, states, steps and deferred initialization."""
