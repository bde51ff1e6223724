"""Every moment at which a run may be cut off, by enumeration; CONTRIBUTING.md says how it is run."""
