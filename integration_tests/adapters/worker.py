"""One of two processes that train on their halves of every batch: `worker.py LIBRARY FOLDER`."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from adapters.parts import Net, Outcome, batches, fit, sgd_with_scheduler
from adapters.strategies import BUILDERS
from camshaft.hooks_core.protocols import Strategy
from camshaft.loops import LoaderSettings, ValidationLoop

ARGUMENTS = {"accumulate_grad_batches": 2, "gradient_clip_val": 0.2}


def train(strategy: Strategy, part: slice, **arguments: object) -> Outcome:
    """Fit on a part of every batch.

    Args:
        arguments: What `fit` takes beside `ARGUMENTS`.
    """
    module = Net(sgd_with_scheduler, noisy=False)
    # each process has its part of every batch already
    own = {"loader_settings": LoaderSettings(use_distributed_sampler=False)}
    taken = {"validation": ValidationLoop(use_distributed_sampler=False), **own, **ARGUMENTS, **arguments}
    return fit(module, strategy, batches(1, part), batches(2, part), **taken)


def main() -> None:
    library, folder = sys.argv[1], Path(sys.argv[2])
    strategy = BUILDERS[library](**({"devices": 2} if library == "fabric" else {}))
    assert strategy.world_size == 2
    rank = strategy.global_rank
    part = slice(rank, None, 2)
    torch.manual_seed(rank)  # ranks begin with weights of their own; those of the first are what counts
    whole = train(strategy, part, path=str(folder / "first.ckpt"))
    resumed = train(strategy, part, checkpoint=strategy.load_checkpoint(str(folder / "first.ckpt")))
    calls = [str(event) for event in whole.calls]
    torch.save({"whole": whole.weights, "resumed": resumed.weights, "calls": calls}, folder / f"{rank}.pt")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
