"""Ending the process when all is done, where nothing has failed."""

from __future__ import annotations


class OrderlyExit(SystemExit):
    """Raised in `teardown` by who wants the process to end after this run: no error to trainers and loggers."""
