"""What each training framework adds to a loop written by hand. Run `benchmarks/overhead.py`."""

from __future__ import annotations

import os

# These two are read when torch is imported, which the modules of this package do. A framework that picks its
# device by itself must find nothing but the CPU, and small operations must not be split over threads.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["CUDA_VISIBLE_DEVICES"] = ""
# Progress bars look at the name of the terminal and at its width before they draw.
os.environ["TERM"] = "xterm-256color"
os.environ["COLUMNS"] = "100"
