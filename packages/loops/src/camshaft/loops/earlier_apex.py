"""Modules of earlier eras that prepare themselves for apex, which torch's own mixed precision has replaced."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from camshaft.hooks_core.messages import must_be
from camshaft.loops.era_arguments import is_under_autocast
from camshaft.loops.optimizers import Optimization
from camshaft.loops.run import Run

_SETTINGS: dict[str, tuple[Any, ...]] = {
    "enabled": (True,),
    "opt_level": ("O1", "O2"),
    "cast_model_type": (None,),
    "patch_torch_functions": (None, True),
    "keep_batchnorm_fp32": (None, True, "True"),
    "master_weights": (None, True),
    "loss_scale": (None, "dynamic"),
    "cast_model_outputs": (None,),
    "min_loss_scale": (None,),
    "max_loss_scale": (None, 2.0**24),
}
"""Settings of `amp.initialize`, and the values of each that are what torch's mixed precision does."""


class Amp:
    """What an override of `configure_apex` gets in place of the module `apex.amp`.

    The strategy has arranged for mixed precision already, and differentiates losses as it needs them: what was asked of
    apex is there, and changes nothing. Names and signatures are those of apex 0.1.
    """

    def initialize(
        self, models: Any, optimizers: Any = None, *, num_losses: int = 1, verbosity: int = 1, **settings: Any
    ) -> Any:
        """Models and optimizers as they are; the models alone if there are no optimizers.

        Raises:
            TypeError: If apex had no such setting.
            NotImplementedError: If a setting asks for anything that torch's mixed precision does not do.
        """
        for name, value in settings.items():
            if name not in _SETTINGS:
                raise TypeError(f"amp.initialize() got an unexpected keyword argument {name!r}")
            if value not in _SETTINGS[name]:
                rule = f"one of {', '.join(map(repr, _SETTINGS[name]))}, as torch's own mixed precision has it"
                action = "Leave it out, or choose another `precision` of the trainer, such as '32-true' or '16-true'."
                raise NotImplementedError(must_be(name, rule, value, "amp.initialize", action))
        return models if optimizers is None else (models, optimizers)

    @contextmanager
    def scale_loss(self, loss: Tensor, optimizers: Any = None, *further: Any, **settings: Any) -> Iterator[Tensor]:
        """The loss as the strategy gave it, which has scaled it if need be."""
        yield loss

    def master_params(self, optimizer: Optimizer) -> Iterator[Tensor]:
        """The parameters that an optimizer updates."""
        for group in optimizer.param_groups:
            yield from group["params"]

    def __getattr__(self, name: str) -> Any:
        action = 'Leave it out; Trainer(precision="16-mixed") arranges for mixed precision.'
        rule = "one of `initialize`, `scale_loss` and `master_params`, since apex no longer exists"
        raise AttributeError(must_be(f"amp.{name}", rule, name, "configure_apex", action))


def configure_apex(run: Run, optimization: Optimization) -> None:
    """Let the module prepare itself for mixed precision, where the strategy has that. Hooks: configure_apex.

    It gets an `Amp` in place of apex, itself, the optimizers, and the trainer's `amp_level` ("O1" without one).

    Args:
        run: The run.
        optimization: The module's optimizers; those that are returned take their places.

    Raises:
        TypeError: If it returns anything else than the module and as many optimizers.
    """
    override = run.hooks.configure_apex
    if override is None or not is_under_autocast(run.strategy):
        return
    level = getattr(run.trainer, "amp_level", None) or "O1"
    returned = override(Amp(), run.module, optimization.optimizers, level)
    model, of_model = returned if isinstance(returned, tuple) and len(returned) == 2 else (None, None)
    optimizers: list[Any] = list(of_model) if isinstance(of_model, list | tuple) else [of_model]
    num_optimizers = len(optimization.optimizers)
    if (
        model is not run.module
        or len(optimizers) != num_optimizers
        or not all(isinstance(one, Optimizer) for one in optimizers)
    ):
        rule = f"the module itself and its optimizers ({num_optimizers})"
        where = f"{type(run.module).__qualname__}.configure_apex"
        action = "Return what `amp.initialize(model, optimizers)` returned."
        raise TypeError(must_be("return value", rule, returned, where, action))
    optimization.take(optimizers)
