"""Tests here name the simulated device as they are imported: without `--simulated-device` they are not collected."""

import os

collect_ignore_glob = [] if "CAMSHAFT_SIMULATED_DEVICE" in os.environ else ["test_*.py"]
