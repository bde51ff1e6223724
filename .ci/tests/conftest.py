"""Tests of the scripts import them by name, as the scripts import each other; so they do noxfile.py."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]
