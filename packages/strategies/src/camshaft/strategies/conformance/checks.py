"""All checks, by name, and running them one after another."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import MappingProxyType

from camshaft.hooks_core.messages import must_be
from camshaft.hooks_core.protocols import Strategy
from camshaft.strategies.conformance import (
    checkpoint_checks,
    collective_checks,
    life_cycle_checks,
    member_checks,
    placement_checks,
    step_checks,
    training_checks,
    update_checks,
)
from camshaft.strategies.conformance.check import Check
from camshaft.strategies.conformance.report import ConformanceError, Outcome, Report

_FUNCTIONS = (
    member_checks.members_are_those_of_the_protocol,
    member_checks.processes_are_numbered,
    collective_checks.broadcast_gives_all_the_value_of_one,
    collective_checks.all_gather_gives_all_values_in_order,
    collective_checks.reduce_combines_element_by_element,
    collective_checks.barriers_wait_for_all,
    placement_checks.modules_stay_themselves_and_move_to_the_device,
    placement_checks.weights_begin_the_same_on_all_ranks,
    placement_checks.models_built_in_the_context_compute,
    placement_checks.batches_move_to_the_device,
    placement_checks.values_are_placed_like_parameters,
    step_checks.steps_pass_arguments_and_results_through,
    step_checks.steps_see_the_modes_of_their_caller,
    step_checks.evaluation_may_end_on_one_rank_before_another,
    training_checks.training_equals_one_device,
    training_checks.others_may_differentiate,
    training_checks.accumulation_equals_one_device,
    training_checks.clipping_by_norm_equals_one_device,
    training_checks.clipping_by_value_equals_one_device,
    training_checks.unscaled_gradients_have_their_true_size,
    update_checks.prepared_optimizers_serve_as_the_originals,
    update_checks.closures_are_evaluated,
    update_checks.step_hooks_run_for_each_update,
    update_checks.skipped_updates_are_told,
    checkpoint_checks.checkpoints_come_back_as_they_were,
    checkpoint_checks.checkpoints_are_replaced_as_a_whole,
    checkpoint_checks.checkpoints_are_of_the_moment_of_their_save,
    checkpoint_checks.training_goes_on_from_a_checkpoint,
    checkpoint_checks.what_a_strategy_learned_comes_back,
    life_cycle_checks.teardown_waits_for_nobody,
    life_cycle_checks.modules_outlive_a_run,
    life_cycle_checks.strategies_follow_each_other,
)

CHECKS: Mapping[str, Check] = MappingProxyType({function.__name__: Check(function) for function in _FUNCTIONS})
"""The checks by name, from what others build on to what builds on others."""


def run(
    make_strategy: Callable[[], Strategy],
    directory: Path | str,
    *,
    rtol: float = 1e-4,
    timeout_seconds: float = 120.0,
    names: Collection[str] | None = None,
) -> Report:
    """Try a strategy by all checks. Collective: all of its processes call it.

    Args:
        make_strategy: Makes a new strategy. The processes are started already, or `connect` starts them.
        directory: A folder that all processes see and that no earlier run has used; made as needed.
        rtol: How far weights may be off those of one device in 32 bits, relative to the largest of a tensor. The
            default is for 32 bits; 16 bits need something like 0.05.
        timeout_seconds: After so long a process gives the strategy up in a check.
        names: The checks to run; None for all.

    Returns:
        The report, the same on all processes. Nothing is raised where the strategy fails.

    Raises:
        ValueError: If a name is that of no check.
    """
    unknown = sorted(set(names or ()) - set(CHECKS))
    if unknown:
        rule = f"names of checks ({', '.join(CHECKS)})"
        raise ValueError(must_be("names", rule, unknown, "conformance.run", "Pass names of `CHECKS`."))
    outcomes: list[Outcome] = []
    in_step = True
    for name, check in CHECKS.items():
        if names is not None and name not in names:
            continue
        error: ConformanceError | None = None
        if in_step:
            try:
                check(make_strategy, Path(directory, name), rtol=rtol, timeout_seconds=timeout_seconds)
            except ConformanceError as raised:
                error = raised
        outcomes.append(Outcome(name, check.promise, error, has_run=in_step))
        in_step = in_step and (error is None or error.in_step)
    return Report(tuple(outcomes))
