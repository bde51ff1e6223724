"""Raise at any one call of any hook of a run, and look at what is left afterwards."""

from __future__ import annotations

import functools
from collections import Counter
from typing import Any

import torch
from bare_parts import BareStrategy, BareTrainer, Net, adam, make_batches
from overriding_parts import OVERRIDES, Data, override
from torch import Tensor, nn
from torch.optim.lr_scheduler import StepLR

from camshaft.hooks_core import CATALOGUE, Callback, StrategyHooks
from camshaft.hooks_core.spec import Receiver
from camshaft.hooks_core.trace import Trace
from camshaft.loops import PredictLoop, TestLoop, ValidationLoop


class FirstCallback(Callback):
    def state_dict(self) -> dict[str, Any]:
        return {"number": 1}


class LastCallback(Callback):
    monitors = True


class ReceivingStrategy(BareStrategy, StrategyHooks):
    __hook_base__ = False


class EveryHookNet(Net):
    """Overrides everything; some of its submodules are in evaluation mode, and one is added in `configure_model`."""

    def __init__(self, overrides: tuple[str, ...] = tuple(OVERRIDES)) -> None:
        super().__init__(configure)
        self.norm = nn.BatchNorm1d(3).eval()
        override(self, *overrides)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.norm(x))

    def configure_model(self) -> None:
        if not hasattr(self, "added"):
            self.added = nn.Dropout()

    def prepare_data(self) -> None:
        """A hook of the module, too."""


def configure(module: nn.Module) -> Any:
    optimizer = adam(module)
    return {"optimizer": optimizer, "lr_scheduler": {"scheduler": StepLR(optimizer, 1), "interval": "step"}}


class Fixture:
    """Fresh receivers for a run of a verb, in which one call of a hook may raise.

    Args:
        verb: The verb.
        raises_at: Number of the call, among all calls of all receivers, that raises; None raises nothing.
        error: What it raises.
        breaking: Names of hooks that raise whenever they are called.
        max_epochs: Epochs of fit.
    """

    def __init__(
        self,
        verb: str,
        raises_at: int | None = None,
        error: BaseException | None = None,
        breaking: tuple[str, ...] = (),
        max_epochs: int = 1,
    ) -> None:
        torch.manual_seed(0)
        self.verb, self.raises_at, self.error = verb, raises_at, error
        self.calls: list[tuple[str, str]] = []
        self.open: list[int] = []
        self.trace = Trace()
        batches = make_batches(3)
        self.module = EveryHookNet()
        self.data = Data(train=batches, val=batches[:1], test=batches, predict=batches)
        self.strategy = ReceivingStrategy()
        callbacks = [FirstCallback(), LastCallback()]
        kinds = [*((callback, "callback") for callback in callbacks)]
        kinds += [(self.data, "data"), (self.module, "module"), (self.strategy, "strategy")]
        for receiver, kind in kinds:
            self._wrap(receiver, Receiver(kind), breaking)
            self.trace.record(receiver, kind)
        self.trainer = BareTrainer(
            self.module,
            callbacks=callbacks,
            data=self.data,
            strategy=self.strategy,
            max_epochs=max_epochs,
            accumulate_grad_batches=2,
            val_check_interval=3,
            num_sanity_val_steps=1,
        )
        self.modes = [submodule.training for submodule in self.module.modules()]

    def run(self) -> Any:
        if self.verb == "fit":
            return self.trainer.fit()
        loop = {"validate": ValidationLoop, "test": TestLoop, "predict": PredictLoop}[self.verb]()
        return self.trainer.verb(self.verb, loop, {})

    def num_calls(self, hook: str) -> Counter[str]:
        return Counter(receiver for receiver, name in self.calls if name == hook)

    def _wrap(self, receiver: Any, kind: Receiver, breaking: tuple[str, ...]) -> None:
        for spec in CATALOGUE.values():
            method = getattr(receiver, spec.name, None)
            if kind not in spec.receivers or spec.kind == "state":
                continue
            if method is None and spec.kind != "event":
                continue
            wrapped = self._wrapped(type(receiver).__name__, spec.name, method, spec.name in breaking)
            object.__setattr__(receiver, spec.name, wrapped)

    def _wrapped(self, receiver: str, hook: str, method: Any, breaks: bool) -> Any:
        def counted(*arguments: Any, **keywords: Any) -> Any:
            number = len(self.calls)
            self.calls.append((receiver, hook))
            if number == self.raises_at:
                assert self.error is not None
                raise self.error
            if breaks:
                raise LookupError(f"{hook} of {receiver} breaks")
            return None if method is None else method(*arguments, **keywords)

        return counted if method is None else functools.wraps(method)(counted)


def reference_calls(verb: str, **settings: Any) -> list[tuple[str, str]]:
    """Every call of an undisturbed run: receiver and hook."""
    fixture = Fixture(verb, **settings)
    fixture.run()
    return fixture.calls
