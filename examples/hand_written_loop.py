"""A training loop of one's own on a strategy of camshaft, without its loops or its Trainer.

On one process, or on several that share each batch out and end with the same weights:

    python examples/hand_written_loop.py --strategy single_device
    torchrun --nproc-per-node 2 examples/hand_written_loop.py --strategy ddp
    torchrun --nproc-per-node 2 examples/hand_written_loop.py --strategy sharded

It needs `camshaft-strategies` and torch alone. Other devices and number formats are arguments of the strategies.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from camshaft.hooks_core.protocols import Strategy
from camshaft.strategies import DDPStrategy, ShardedStrategy, SingleDeviceStrategy

STRATEGIES = {"single_device": SingleDeviceStrategy, "ddp": DDPStrategy, "sharded": ShardedStrategy}
NUM_CLASSES = 4
BATCH_SIZE = 64  # of all processes together


def make_data(num_samples: int) -> tuple[Tensor, Tensor]:
    """Points in the plane; a point's class is the quarter that it lies in."""
    points = torch.randn(num_samples, 2, generator=torch.Generator().manual_seed(0))
    return points, (points[:, 0] > 0) * 2 + (points[:, 1] > 0)


def train(strategy: Strategy, model: nn.Module, num_epochs: int, accumulate: int, path: str) -> None:
    """Train, count the points that are classified rightly, and save."""

    def training_step(points: Tensor, classes: Tensor) -> Tensor:
        return cross_entropy(model(points), classes) / accumulate

    strategy.connect()
    strategy.setup_module(model)
    (optimizer,) = strategy.setup_optimizers([torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)])
    training_step, predict = strategy.wrap_step(training_step), strategy.wrap_step(model)
    rank, num_ranks = strategy.data_rank, strategy.num_data_ranks
    points, classes = make_data(2048)
    for epoch in range(num_epochs):
        order = torch.randperm(len(points), generator=torch.Generator().manual_seed(epoch))
        for batch_idx, batch in enumerate(order.split(BATCH_SIZE)):
            own = batch[rank::num_ranks]
            is_update = batch_idx % accumulate == accumulate - 1
            strategy.set_gradient_sync(is_update)  # processes talk to each other at the end of a window only
            strategy.backward(training_step(*strategy.batch_to_device((points[own], classes[own]))))
            if is_update:
                strategy.unscale_gradients(optimizer)
                strategy.clip_gradients(optimizer, 1.0, "norm")
                strategy.optimizer_step(optimizer)
                optimizer.zero_grad()

    points, classes = strategy.batch_to_device((points[rank::num_ranks], classes[rank::num_ranks]))
    with torch.no_grad():
        num_right = strategy.reduce((predict(points).argmax(1) == classes).sum(), "sum")
    strategy.save_checkpoint({"state_dict": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
    if strategy.global_rank == 0:
        print(f"{num_ranks} process(es): {num_right.item()} of 2048 right; saved {path}")
    strategy.teardown()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--strategy", choices=list(STRATEGIES), default="ddp")
    parser.add_argument("--precision", default="32-true", help="such as 16-mixed or bf16-mixed")
    parser.add_argument("--path", default="hand_written_loop.ckpt", help="where to save")
    arguments = parser.parse_args()
    torch.manual_seed(1)
    network = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, NUM_CLASSES))
    chosen = STRATEGIES[arguments.strategy](precision=arguments.precision)
    train(chosen, network, num_epochs=5, accumulate=2, path=arguments.path)
