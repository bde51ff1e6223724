"""One of two processes that try a library's adapter: `conformance_worker.py LIBRARY FOLDER`."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from adapters.strategies import BUILDERS
from camshaft.hooks_core.protocols import Strategy
from camshaft.strategies import conformance

TOLERANCES = {False: 1e-4, True: 0.05}


def main() -> None:
    library, folder = sys.argv[1], Path(sys.argv[2])
    gc.freeze()  # Accelerate collects garbage at each tear-down, and what is imported by now is none
    for bf16, rtol in TOLERANCES.items():

        def make(bf16: bool = bf16) -> Strategy:
            return BUILDERS[library](bf16=bf16, **({"devices": 2} if library == "fabric" else {}))

        strategy = make()
        assert strategy.world_size == 2
        report = conformance.run(make, folder / str(bf16), rtol=rtol)
        (folder / f"{bf16}.{strategy.global_rank}.txt").write_text(f"{report.passed}\n{report}")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
