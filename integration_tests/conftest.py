"""Integration tests start ranks as the tests of camshaft-strategies do."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "packages" / "strategies" / "tests"))
