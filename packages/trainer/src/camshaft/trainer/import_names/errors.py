"""Errors of earlier releases."""

from __future__ import annotations


class MisconfigurationException(ValueError):
    """What earlier code raises where arguments contradict each other.

    Ours raise `TypeError` and `ValueError` there, which an `except` clause for this one does not catch.
    """
