"""Optimizers and updates of batches as a module's era made them of what it configures."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

import camshaft.compat.eras.releases as releases
import camshaft.compat.eras.updates as earlier
from camshaft.compat.eras.outputs import keep_epoch_outputs
from camshaft.hooks_core import is_overridden
from camshaft.hooks_core.eras.releases import TODAY, Behaviour
from camshaft.hooks_core.support.messages import must_be, warn_user
from camshaft.loops import (
    ConfiguredOptimizers,
    FitLimits,
    FitProgress,
    OptimizationSettings,
    Run,
    StandardOptimizationFactory,
    UpdateMode,
)
from camshaft.loops.optimization.configuration import read_configuration
from camshaft.loops.optimization.manual import check_optimizer_idx
from camshaft.loops.optimization.toggling import OptimizerToggle
from camshaft.loops.optimization.update import OptimizerUpdate, UpdateContext, has_owner, is_under_autocast

_ON = ("enabled", "keep_batchnorm_fp32", "master_weights", "patch_torch_functions")
_SETTINGS_OF_APEX: dict[str, tuple[Any, ...]] = {
    **{"opt_level": ("O1", "O2"), "loss_scale": (None, "dynamic"), "max_loss_scale": (None, 2.0**24)},
    **dict.fromkeys(_ON, (None, True, "True")),
}
"""Settings of `amp.initialize`, and the values of each that are what torch's mixed precision does."""


class EraOptimization(StandardOptimizationFactory):
    """The `OptimizationFactory` of runs whose module may be of an earlier era."""

    def configure(self, run: Run) -> ConfiguredOptimizers:
        """Return the optimizers and schedulers, as the module's era makes them of what it configures.

        Without any, automatic optimization has a `NoOptimizer`, as in every release of Lightning.

        Hooks: configure_optimizers, init_optimizers, configure_apex.

        Raises:
            TypeError: If `init_optimizers` returns anything else than optimizers, schedulers and perhaps frequencies;
                or as `configure_apex` and `read_configuration` raise it.
            ValueError: As `read_configuration` raises it, or if there is not one frequency for each optimizer.
        """
        optimization = _configured(run)
        configure_apex(run, optimization)
        if not optimization.optimizers and getattr(run.module, "automatic_optimization", True):
            warn_user("`configure_optimizers` returned no optimizer: nothing will be updated. Return one to train.")
            optimization.take([earlier.NoOptimizer()])
        return optimization

    def make_mode(
        self,
        run: Run,
        optimization: ConfiguredOptimizers,
        progress: FitProgress,
        limits: FitLimits,
        settings: OptimizationSettings,
    ) -> UpdateMode:
        """Make the mode as `StandardOptimizationFactory` does, and keep the outputs that an epoch-end hook takes."""
        is_automatic = bool(getattr(run.module, "automatic_optimization", True))
        keep_epoch_outputs(run, len(optimization.optimizers) if is_automatic else 1, progress)
        _warn_of_counts(run, optimization, limits)
        return super().make_mode(run, optimization, progress, limits, settings)

    def make_manual(self, context: UpdateContext) -> UpdateMode:
        """Return the mode of a module that optimizes by itself."""
        run = context.run
        release = releases.release_of(run)
        if release >= releases.REFUSES_INDEX_BY_HAND:
            try:
                check_optimizer_idx(run, context.configured)
            except ValueError as error:
                error.add_note('If it was written for 1.0 to 1.4, which passed 0, declare it: `hook_era = "1.4"`.')
                raise
        if not _counts_batches(run):
            return super().make_manual(context)
        zeroes = releases.behaviour_in(run).zero_grad == "after_optimizer_step" and release >= releases.ZEROES_BY_HAND
        return earlier.BatchCountedManualOptimization(context, zeroes_after_step=zeroes)

    def make_update(self, context: UpdateContext, optimizer: Optimizer, optimizer_idx: int) -> OptimizerUpdate:
        """Return what makes the updates of one optimizer, as the module's era made it."""
        behaviour = releases.behaviour_in(context.run)
        further: dict[str, Any] = {}
        if behaviour.steps_after_backward:
            further["step_zeroes"] = behaviour.step_zeroes and context.settings.zero_grad is None
        update = earlier.update_class(behaviour, optimizer, has_owner=has_owner(context.run, optimizer))
        return update(context, optimizer, optimizer_idx, default_zero_grad=behaviour.zero_grad, **further)

    def make_per_optimizer(
        self, context: UpdateContext, updates: Sequence[OptimizerUpdate], toggle: OptimizerToggle | None
    ) -> UpdateMode:
        """Return the mode of several optimizers that take turns, or of batches that are split."""
        if not _counts_batches(context.run):
            return super().make_per_optimizer(context, updates, toggle)
        by_epoch = releases.release_of(context.run) >= releases.TURNS_BY_EPOCH
        return earlier.BatchCountedPerOptimizerOptimization(context, updates, toggle=toggle, turns_by_epoch=by_epoch)

    def make_toggle(self, context: UpdateContext) -> OptimizerToggle:
        """Return what lets the parameters of the optimizer at work alone require gradients, if its era did so."""
        module, optimizers = context.run.module, context.configured.optimizers
        if is_overridden(module, "toggle_optimizer"):
            return earlier.ModuleToggle(module, optimizers)
        freezes = releases.behaviour_in(context.run).freezes_other_optimizers
        return super().make_toggle(context) if freezes else earlier.NoToggle(optimizers)


def _warn_of_counts(run: Run, optimization: ConfiguredOptimizers, limits: FitLimits) -> None:
    """Warn of numbers of steps that a release may have counted for each of several optimizers."""
    num_optimizers = len(optimization.optimizers)
    if num_optimizers < 2 or optimization.frequencies or not releases.may_count_each_optimizer(run):
        return
    counts = [("max_steps", max(limits.max_steps, 0)), ("min_steps", limits.min_steps)]
    counts += [("every_n_train_steps", getattr(callback, "every_n_train_steps", None)) for callback in run.callbacks]
    for name, count in counts:
        if count:
            warn_user(
                f"`{name}={count}` counts an update of all {num_optimizers} optimizers as one step, as up to 1.5; from "
                "1.6 on each optimizer's step counted. Give the number of batches, which is "
                f"{math.ceil(count / num_optimizers)} for the same run if all optimizers step in each."
            )


def _counts_batches(run: Run) -> bool:
    return releases.behaviour_in(run).since < releases.COUNTS_UPDATES


def _configured(run: Run) -> ConfiguredOptimizers:
    hooks, behaviour = run.hooks, releases.behaviour_in(run)
    assert hooks.configure_optimizers is not None
    is_manual = not getattr(run.module, "automatic_optimization", True)
    configured = hooks.configure_optimizers()
    if hooks.init_optimizers is None:
        return configuration_of(configured, behaviour, is_manual=is_manual)
    returned = hooks.init_optimizers(configured)
    where = f"{type(run.module).__qualname__}.init_optimizers"
    if not isinstance(returned, tuple) or len(returned) not in (2, 3):
        rule = "the optimizers and the schedulers, and perhaps the optimizers' frequencies"
        raise TypeError(must_be("return value", rule, returned, where, "Return a tuple of two lists, or of three."))
    optimizers, schedulers, *further = returned
    optimization = configuration_of((list(optimizers), list(schedulers or ())), behaviour, is_manual=is_manual)
    frequencies = [frequency for frequency in (further[0] if further else None) or () if frequency is not None]
    if frequencies and len(frequencies) != len(optimization.optimizers):
        rule = f"one for each of the {len(optimization.optimizers)} optimizers, or none"
        raise ValueError(must_be("frequencies", rule, further[0], where, "Return a list as long as the first."))
    optimization.frequencies = frequencies
    return optimization


def configuration_of(returned: Any, behaviour: Behaviour = TODAY, *, is_manual: bool = False) -> ConfiguredOptimizers:
    """Bring what `configure_optimizers` returned into one form, as an era read it.

    Args:
        returned: What it returned.
        behaviour: What the era did, see `in_form_of_today`.
        is_manual: Whether the module optimizes by hand. It then steps schedulers by hand as well, except in eras that
            did it, and these need not say what they monitor.

    Raises:
        TypeError, ValueError: As `camshaft.loops.optimization.configuration.read_configuration` raises them.
    """
    return read_configuration(
        in_form_of_today(returned, behaviour),
        steps_schedulers=behaviour.steps_schedulers_by_hand or not is_manual,
        checks_attachment=behaviour.since >= (1, 2),
    )


def in_form_of_today(returned: Any, behaviour: Behaviour) -> Any:
    """Bring what a module returned into a form in which `read_configuration` understands what its release did.

    - A scheduler gets a value only if it is a `ReduceLROnPlateau` or, from 1.6 on, its settings say
      `reduce_on_plateau`; for others `monitor` made no difference. Before 1.0 the value was "val_loss" unless `monitor`
      said otherwise.
    - Beside an optimizer, `monitor` is that of its scheduler, and an empty `lr_scheduler` is none.
    - The frequency of a single optimizer made no difference.

    Args:
        returned: What the module returned.
        behaviour: What its era did.

    Returns:
        The same for today; forms that no era had are left for `read_configuration` to refuse.
    """
    if isinstance(returned, Mapping):
        return _without_frequency(_dictionary(returned, behaviour))
    if not isinstance(returned, (list, tuple)):
        return returned
    if len(returned) == 2 and isinstance(returned[0], (list, tuple)):
        optimizers, schedulers = returned
        schedulers = schedulers if isinstance(schedulers, (list, tuple)) else [schedulers]
        return list(optimizers), [_scheduler(one, behaviour) for one in schedulers]
    if returned and all(isinstance(one, Mapping) for one in returned):
        dictionaries = [_dictionary(one, behaviour) for one in returned]
        return dictionaries if len(dictionaries) > 1 else [_without_frequency(dictionaries[0])]
    return list(returned)


def _dictionary(given: Mapping[str, Any], behaviour: Behaviour) -> dict[str, Any]:
    settings = dict(given)
    monitor, scheduler = settings.pop("monitor", None), settings.pop("lr_scheduler", None)
    is_empty = scheduler is None or (isinstance(scheduler, (list, tuple, Mapping)) and not scheduler)
    return settings if is_empty else {**settings, "lr_scheduler": _scheduler(scheduler, behaviour, monitor)}


def _without_frequency(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name != "frequency"}


def _scheduler(given: Any, behaviour: Behaviour, monitor_of_optimizer: str | None = None) -> Any:
    settings = dict(given) if isinstance(given, Mapping) else {"scheduler": given}
    if "scheduler" not in settings:
        return settings
    default_monitor = "val_loss" if behaviour.since < (1, 0) else None
    monitor = settings.pop("monitor", None) or monitor_of_optimizer or default_monitor
    on_plateau, _ = settings.pop("reduce_on_plateau", False), settings.pop("opt_idx", None)
    on_plateau = on_plateau and behaviour.since >= (1, 6)
    if on_plateau or isinstance(settings["scheduler"], ReduceLROnPlateau):
        return {**settings, "monitor": monitor, "reduce_on_plateau": True}
    return settings


class Amp:
    """A stand-in for the module `apex.amp`, as the argument of an override of `configure_apex`.

    The strategy has arranged for mixed precision already, and differentiates losses as it needs them: what was asked of
    apex is there, and changes nothing. Names and signatures are those of apex 0.1.
    """

    def initialize(
        self, models: Any, optimizers: Any = None, *, num_losses: int = 1, verbosity: int = 1, **settings: Any
    ) -> Any:
        """Return models and optimizers unchanged; the models alone if there are no optimizers.

        Raises:
            NotImplementedError: If a setting asks for anything that torch's mixed precision does not do.
        """
        for name, value in settings.items():
            known = _SETTINGS_OF_APEX.get(name, (None,))
            if value not in known:
                rule = f"one of {', '.join(map(repr, known))}, as torch's own mixed precision has it"
                action = "Leave it out, or choose another `precision` of the trainer, such as '32-true' or '16-true'."
                raise NotImplementedError(must_be(name, rule, value, "amp.initialize", action))
        return models if optimizers is None else (models, optimizers)

    def scale_loss(self, loss: Tensor, optimizers: Any = None, *further: Any, **settings: Any) -> Any:
        """Return a context that yields the loss as the strategy gave it, which has scaled it if necessary."""
        return nullcontext(loss)

    def master_params(self, optimizer: Optimizer) -> Iterator[Tensor]:
        """Yield the parameters that an optimizer updates."""
        return (parameter for group in optimizer.param_groups for parameter in group["params"])

    def __getattr__(self, name: str) -> Any:
        action = 'Leave it out; Trainer(precision="16-mixed") arranges for mixed precision.'
        rule = "one of `initialize`, `scale_loss` and `master_params`, since apex no longer exists"
        raise AttributeError(must_be(f"amp.{name}", rule, name, "configure_apex", action))


def configure_apex(run: Run, optimization: ConfiguredOptimizers) -> None:
    """Call the module's `configure_apex` if the strategy has mixed precision. Hooks: configure_apex.

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
    own, num_optimizers = run.module, len(optimization.optimizers)
    returned = override(Amp(), own, optimization.optimizers, level)
    model, of_model = returned if isinstance(returned, tuple) and len(returned) == 2 else (None, None)
    optimizers: list[Any] = list(of_model) if isinstance(of_model, list | tuple) else [of_model]
    are_optimizers = len(optimizers) == num_optimizers and all(isinstance(one, Optimizer) for one in optimizers)
    if model is not own or not are_optimizers:
        rule = f"the module itself and its optimizers ({num_optimizers})"
        where = f"{type(own).__qualname__}.configure_apex"
        raise TypeError(must_be("return value", rule, returned, where, "Return what `amp.initialize` returned."))
    optimization.take(optimizers)
