"""Two small networks in the style of a GAN, for modules of earlier eras, and training written by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from bare_parts import Sized
from compat_parts import BareTrainer
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from camshaft.compat.module import takes_earlier_forms
from camshaft.hooks_core import ModelHooks

NUM_FEATURES = 3


class EarlierModelHooks(ModelHooks):
    """Hooks whose `optimizer_step` can be called with the arguments of every era."""

    __hook_base__ = True
    optimizer_step = takes_earlier_forms(ModelHooks.optimizer_step)


class TwoNets(nn.Module):
    """A generator and a discriminator whose losses reach each other; every optimizer has momentum."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Linear(NUM_FEATURES, NUM_FEATURES)
        self.discriminator = nn.Linear(NUM_FEATURES, 1)
        self.num_steps = 0

    def loss(self, x: Tensor, optimizer_idx: int) -> Tensor:
        self.num_steps += 1
        faked = self.discriminator(torch.tanh(self.generator(x)))
        if optimizer_idx == 0:
            return (faked - 1).square().mean()
        return faked.square().mean() + (self.discriminator(x) - 1).square().mean()

    def training_step(self, batch: Tensor, batch_idx: int, optimizer_idx: int) -> Any:
        return {"loss": self.loss(batch, optimizer_idx)}

    def optimizers_by_hand(self) -> list[Optimizer]:
        return [
            SGD(self.generator.parameters(), lr=0.1, momentum=0.9),
            SGD(self.discriminator.parameters(), lr=0.05, momentum=0.9),
        ]

    def configure_optimizers(self) -> Any:
        return self.optimizers_by_hand()


class Stepping:
    """An override that steps as its era does: up to 0.9 it zeroes gradients, from 1.0 on it passes the closure."""

    hook_era: str

    def optimizer_step(
        self, epoch: int, batch_idx: int, optimizer: Any, optimizer_idx: int, closure: Any = None
    ) -> None:
        if self.hook_era[0] == "0":
            optimizer.step()
            optimizer.zero_grad()
        else:
            optimizer.step(closure=closure)


class OneNet(nn.Module):
    """One network with one optimizer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(NUM_FEATURES, 2)
        self.head = nn.Linear(2, 1)

    def loss(self, x: Tensor) -> Tensor:
        return (self.head(torch.tanh(self.layer(x))) - 1).square().mean()

    def training_step(self, batch: Tensor, batch_idx: int) -> Any:
        return {"loss": self.loss(batch)}

    def optimizers_by_hand(self) -> list[Optimizer]:
        return [SGD(self.parameters(), lr=0.1, momentum=0.9)]

    def configure_optimizers(self) -> Any:
        return self.optimizers_by_hand()


def make_inputs(number: int, seed: int = 1) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return list(torch.randn(number, 4, NUM_FEATURES, generator=generator))


def own(optimizer: Optimizer) -> list[Tensor]:
    """The parameters of an optimizer."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def differentiate(loss: Callable[[], Tensor], optimizer: Optimizer) -> None:
    """Add a loss's gradients to those of one optimizer's parameters alone."""
    gradients = torch.autograd.grad(loss(), own(optimizer))
    for parameter, gradient in zip(own(optimizer), gradients, strict=True):
        parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient


def of_era(era: str, *kinds: type) -> type:
    """A class that declares its era."""
    return type("OfEra", kinds, {"hook_era": era})


def step_by_hand(module: TwoNets, optimizers: list[Optimizer], x: Tensor, *turns: int) -> None:
    """Step these optimizers one after the other, each with gradients of its own loss alone."""
    for idx in turns:
        optimizers[idx].zero_grad()
        differentiate(lambda idx=idx: module.loss(x, idx), optimizers[idx])
        optimizers[idx].step()


def fit(module: Any, inputs: list[Tensor], checkpoint: Any = None, **arguments: Any) -> BareTrainer:
    """Train; modules of those days have a trainer."""
    trainer = BareTrainer(module, **{"max_epochs": 1, "zero_grad": None, **arguments})
    object.__setattr__(module, "trainer", trainer)
    return trainer.fit(Sized(inputs), checkpoint=checkpoint)


class Alternating(TwoNets):
    """The first recipe of the document of 0.5, as written there."""

    def training_step(self, batch: Tensor, batch_nb: int, optimizer_i: int) -> Any:
        return {"loss": self.loss(batch, optimizer_i)}

    def optimizer_step(
        self, current_epoch: int, batch_nb: int, optimizer: Any, optimizer_i: int, second_order_closure: Any = None
    ) -> None:
        # update generator opt every 2 steps
        if optimizer_i == 0:  # noqa: SIM102
            if batch_nb % 2 == 0:
                optimizer.step()
                optimizer.zero_grad()

        # update discriminator opt every 4 steps
        if optimizer_i == 1:  # noqa: SIM102
            if batch_nb % 4 == 0:
                optimizer.step()
                optimizer.zero_grad()


def alternate_by_hand(
    module: TwoNets, inputs: list[Tensor], num_epochs: int = 1, *, zeroes: str | None = None, freezes: bool = False
) -> None:
    """Train as `Alternating` says.

    Args:
        module: The module.
        inputs: The batches of an epoch.
        num_epochs: How many there are.
        zeroes: Where an optimizer's gradients are zeroed in each of its turns: "before" or "after"; None leaves that to
            the module.
        freezes: Whether a turn gives gradients to the parameters of its optimizer alone.
    """
    optimizers = module.optimizers_by_hand()
    for _ in range(num_epochs):
        for batch_idx, x in enumerate(inputs):
            for idx, optimizer in enumerate(optimizers):
                if zeroes == "before":
                    optimizer.zero_grad()
                if freezes:
                    differentiate(lambda x=x, idx=idx: module.loss(x, idx), optimizer)
                else:
                    module.loss(x, idx).backward()
                if batch_idx % (2, 4)[idx] == 0:
                    optimizer.step()
                    optimizer.zero_grad()
                if zeroes == "after":
                    optimizer.zero_grad()
