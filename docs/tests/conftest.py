"""The extensions of the documentation can be imported by its tests."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "_extensions"))
