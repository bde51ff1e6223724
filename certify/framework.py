"""What an adapter says of a framework, and the small module and data that every framework is run on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import attrs
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from camshaft.hooks_core import ModelHooks
from camshaft.hooks_core.conformance import Adapter
from camshaft.hooks_core.spec import VERBS, ZeroGrad

SET_UP = ("prepare_data", "setup", "configure_sharded_model", "configure_model", "teardown")
AROUND_FIT = ("on_fit_start", "on_fit_end")
SANITY_CHECK = ("on_sanity_check_start", "on_sanity_check_end")
AROUND_BACKWARD = ("on_before_backward", "on_after_backward")
RECEIVERS = ("monitoring", "after_module")  # features of a trainer that calls the kit's receivers itself
OF_A_TRAINER = (*SET_UP, *AROUND_FIT, *SANITY_CHECK, *AROUND_BACKWARD)  # what frameworks with fewer callbacks leave out


@attrs.frozen(kw_only=True)
class Framework:
    """A framework with its adapter, and what it has of the protocol.

    Args:
        title: Its name in the table.
        about: What the adapter runs and where its calls come from, in a sentence or two.
        distributions: The distributions whose versions belong to the result.
        adapter: How the kit runs it.
        verbs: As `certify` takes it, like the next three.
        features: The features that it has.
        without: The hooks for which it has no callback.
        zero_grad: Where it zeroes gradients.
    """

    title: str
    about: str
    distributions: tuple[str, ...]
    adapter: Adapter
    verbs: tuple[str, ...] = VERBS
    features: tuple[str, ...]
    without: tuple[str, ...] = ()
    zero_grad: ZeroGrad | None = None


class Steps(nn.Module):
    """The steps of every verb; the base of a framework's module comes after it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def forward(self, batch: Tensor) -> Tensor:
        return self.layer(batch)

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        return self(batch).square().mean()

    def validation_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        return self(batch).square().mean()

    test_step = validation_step

    def predict_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        return self(batch)


class Line(Steps, ModelHooks):
    """A module for frameworks that take any."""


def loader(num_samples: int, batch_size: int = 1) -> Any:
    """Return a loader of so many samples."""
    samples: Any = torch.ones(num_samples, 2)
    return DataLoader(samples, batch_size=batch_size)


def sgd(module: nn.Module, hooks: Any = None) -> torch.optim.Optimizer:
    """Return an optimizer; with hooks, torch's own hook of the optimizer calls `on_before_optimizer_step`."""
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    if hooks is not None:
        optimizer.register_step_pre_hook(lambda *_: hooks.on_before_optimizer_step(optimizer))
    return optimizer


class Stage:
    """The hooks of a stage, called by their moments, with the index of the batch.

    Args:
        hooks: The resolved hooks.
        stage: "train", or another verb than "fit".
    """

    def __init__(self, hooks: Any, stage: str) -> None:
        self._hooks = hooks
        self._word = word = "validation" if stage == "validate" else stage
        self._loader = () if word == "train" else (0,)
        self._step = getattr(hooks, "training_step" if word == "train" else f"{word}_step")
        self.batch_idx = 0

    def call(self, moment: str, batch: Any = None, outputs: Any = None) -> Any:
        """Call the hook of a moment, such as "epoch_start" or "batch_end", and return its result."""
        hook = getattr(self._hooks, f"on_{self._word}_{moment}")
        if moment == "batch_start":
            return hook(batch, self.batch_idx, *self._loader)
        if moment == "batch_end":
            hook(outputs, batch, self.batch_idx, *self._loader)
            self.batch_idx += 1
            return None
        self.batch_idx = 0
        return hook()

    @contextmanager
    def around(self, before: tuple[str, ...], after: tuple[str, ...]) -> Iterator[None]:
        """Call the hooks of moments before something, and those of others after it."""
        for moment in before:
            self.call(moment)
        yield
        for moment in after:
            self.call(moment)

    def step(self, batch: Any) -> Any:
        """Call the stage's step and return its result."""
        return self._step(batch, self.batch_idx, *self._loader)

    def run(self, batches: Any) -> None:
        """Run an evaluation by hand, for libraries that leave the loop to the user."""
        self.call("start")
        self.call("epoch_start")
        for batch in batches:
            self.call("batch_start", batch)
            self.call("batch_end", batch, self.step(batch))
        self.call("epoch_end")
        self.call("end")


def sanity_check(hooks: Any, batches: Any) -> None:
    """Run the sanity check by hand."""
    hooks.on_sanity_check_start()
    Stage(hooks, "validate").run(batches)
    hooks.on_sanity_check_end()


@contextmanager
def life_of(hooks: Any, verb: str) -> Iterator[None]:
    """Call the hooks around a run, for libraries that leave the loop to the user."""
    try:
        hooks.prepare_data()
        hooks.setup(verb)
        hooks.configure_sharded_model()
        hooks.configure_model()
        yield
    except BaseException as error:
        hooks.on_exception(error)
        raise
    finally:
        hooks.teardown(verb)
