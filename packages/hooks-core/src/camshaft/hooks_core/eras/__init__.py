"""Earlier eras as data: their hooks, orders and releases, laid over those of today."""
