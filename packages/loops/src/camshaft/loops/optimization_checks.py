"""What a kind of optimization cannot do, refused before anything is trained."""

from __future__ import annotations

from collections.abc import Sequence

from torch.optim import Optimizer

from camshaft.hooks_core.implementation import implementation
from camshaft.hooks_core.messages import must_be
from camshaft.loops.optimization_settings import OptimizationSettings
from camshaft.loops.optimizers import Optimization
from camshaft.loops.run import Run


def check_manual(run: Run, optimization: Optimization, settings: OptimizationSettings) -> None:
    """Raise `ValueError` if manual optimization is asked for what only automatic optimization can do."""
    where = type(run.module).__qualname__
    for name, value, neutral in (
        ("accumulate_grad_batches", settings.accumulate_grad_batches, 1),
        ("gradient_clip_val", settings.gradient_clip_val, None),
        ("zero_grad", settings.zero_grad or "before_backward", "before_backward"),
        ("frequency", optimization.frequencies or None, None),
    ):
        if value != neutral:
            rule = f"{neutral!r} under manual optimization"
            raise ValueError(must_be(name, rule, value, where, "Do it in `training_step`."))


def check_index_by_hand(run: Run, optimization: Optimization) -> None:
    """Raise `ValueError` if a step that optimizes by hand asks for the index of one of several optimizers."""
    if run.hooks.takes("training_step", "optimizer_idx") and len(optimization.optimizers) > 1:
        rule = "one without `optimizer_idx` under manual optimization, where it steps all optimizers by itself"
        action = "Leave `optimizer_idx` out, or set `automatic_optimization = True`."
        where = type(run.module).__qualname__
        raise ValueError(must_be("training_step", rule, implementation(run.module, "training_step"), where, action))


def check_automatic(run: Run, optimizers: Sequence[Optimizer]) -> None:
    """Raise `ValueError` if there are several optimizers that automatic optimization cannot tell apart."""
    if len(optimizers) > 1 and not run.hooks.takes("training_step", "optimizer_idx"):
        rule = "1 under automatic optimization, unless `training_step` names `optimizer_idx`"
        action = (
            "Take `optimizer_idx` in `training_step`, which then runs once for each optimizer, or set "
            "`automatic_optimization = False` and step them in `training_step`."
        )
        where = type(run.module).__qualname__
        raise ValueError(must_be("number of optimizers", rule, len(optimizers), where, action))
