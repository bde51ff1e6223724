"""Running one check so that no process waits for ever."""

from __future__ import annotations

import contextvars
import sys
import threading
import time
import traceback
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from attrs import frozen

from camshaft.hooks_core.messages import must_be
from camshaft.hooks_core.protocols import Strategy
from camshaft.strategies.conformance import checkpoint_checks, protocol_checks, step_checks, update_checks
from camshaft.strategies.conformance import step_checks as placement_checks
from camshaft.strategies.conformance import update_checks as training_checks
from camshaft.strategies.conformance.trial import Departed, Ended, OutOfStepError, Ranks, Trial

_POLL_SECONDS = 0.02
_GRACE_SECONDS = 5.0
_NUM_FRAMES = 6


@frozen
class Check:
    """One promise of the strategy protocol, and how to see whether a strategy keeps it.

    Attributes:
        function: Tries the strategy and notes what departs from the promise.
    """

    function: Callable[[Trial], None]

    @property
    def name(self) -> str:
        """Its name, such as "training_equals_one_device"."""
        return self.function.__name__

    @property
    def promise(self) -> str:
        """The promise in a sentence."""
        return (self.function.__doc__ or "").strip()

    def __call__(
        self,
        make_strategy: Callable[[], Strategy],
        directory: Path | str,
        *,
        rtol: float = 1e-4,
        timeout_seconds: float = 120.0,
    ) -> None:
        """Try a strategy. Collective: all of its processes call it.

        It runs in a thread of its own, so that the caller is told if the strategy waits for ever.

        Args:
            make_strategy: Makes a new strategy. The processes are started already, or `connect` starts them.
            directory: A folder that all processes see and that no other check uses; made as needed.
            rtol: How far weights may be off those of one device in 32 bits, relative to the largest of a tensor.
            timeout_seconds: After so long a process gives the strategy up.

        Raises:
            ConformanceError: If the strategy does not keep the promise, raises, or waits for ever. It is raised on
                every process, with what all of them saw.
            Exception: What `make_strategy` raises when it is first called.
        """
        directory = Path(directory)
        strategy = make_strategy()
        try:
            strategy.connect()
            ranks = Ranks(directory, strategy.global_rank, strategy.world_size, timeout_seconds)
        except Exception as cause:
            finding = f"it raised {_in_words(cause)} before the check began"
            raise ConformanceError(self.name, {0: [finding]}, in_step=False) from cause
        trial = Trial(make_strategy, directory, rtol, ranks)
        error, ended = _run(self.function, trial, timeout_seconds)
        everywhere = ranks.end(ended)
        findings = {rank: _lines(end) for rank, end in everywhere.items()}
        if any(findings.values()):
            kinds = {end.kind if end is not None else "missing" for end in everywhere.values()}
            in_step = len(kinds) == 1 and not kinds & {"missing", _STUCK}
            raise ConformanceError(self.name, findings, in_step=in_step) from error


_STUCK = "stuck"


def _run(function: Callable[[Trial], None], trial: Trial, timeout_seconds: float) -> tuple[BaseException | None, Ended]:
    """Run a check in a thread. Returns what it raised, and how it ended."""
    done = threading.Event()
    raised: list[BaseException] = []
    device = torch.cuda.current_device() if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]

    def body() -> None:
        try:
            if device is not None:
                torch.cuda.set_device(device)  # each thread has its own
            function(trial)
        except Departed:
            pass
        except BaseException as error:
            raised.append(error)
        finally:
            done.set()

    thread = threading.Thread(target=contextvars.copy_context().run, args=(body,), daemon=True)
    thread.start()
    reason = _wait(done, trial.ranks, timeout_seconds)
    if reason is not None:
        return None, Ended(trial.findings, _STUCK, f"{reason}; it is still at {_place(thread)}")
    if not raised:
        return None, Ended(trial.findings)
    error = raised[0]
    kind = type(error).__name__
    text = str(error) if isinstance(error, OutOfStepError) else f"it raised {_in_words(error)}"
    return error, Ended(trial.findings, kind, text)


def _wait(done: threading.Event, ranks: Ranks, timeout_seconds: float) -> str | None:
    """Wait for the thread. Returns why it was given up, or None if it ended."""
    deadline = time.monotonic() + timeout_seconds
    others_failed_at: float | None = None
    while not done.wait(_POLL_SECONDS):
        now = time.monotonic()
        if now > deadline:
            return f"the strategy did not return within {timeout_seconds:g} s"
        if ranks.size > 1 and others_failed_at is None and ranks.first_error() is not None:
            others_failed_at = now
        if others_failed_at is not None and now > others_failed_at + _GRACE_SECONDS:
            return "the strategy waits for another rank, where the check failed"
    return None


def _lines(ended: Ended | None) -> list[str]:
    if ended is None:
        return ["the check did not end on this rank"]
    return [*ended.findings, *([ended.text] if ended.kind is not None else [])]


def _in_words(error: BaseException) -> str:
    """An exception with the line of code that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno}, in {frames[-1].name})" if frames else ""
    return f"{type(error).__name__}: {error}{where}"


def _place(thread: threading.Thread) -> str:
    frame: Any = sys._current_frames().get(thread.ident or 0)
    entries = traceback.extract_stack(frame) if frame is not None else []
    names = [f"{Path(entry.filename).name}:{entry.lineno} {entry.name}" for entry in entries]
    own = [position for position, entry in enumerate(entries) if entry.filename == __file__]
    names = names[own[-1] + 1 :] if own else names  # what the check called
    if len(names) > _NUM_FRAMES:
        names[_NUM_FRAMES - 2 : -2] = ["..."]
    return " > ".join(names) or "an unknown place"


_FUNCTIONS = (
    protocol_checks.members_are_those_of_the_protocol,
    protocol_checks.processes_are_numbered,
    protocol_checks.broadcast_gives_all_the_value_of_one,
    protocol_checks.all_gather_gives_all_values_in_order,
    protocol_checks.reduce_combines_element_by_element,
    protocol_checks.barriers_wait_for_all,
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
    protocol_checks.teardown_waits_for_nobody,
    protocol_checks.modules_outlive_a_run,
    protocol_checks.strategies_follow_each_other,
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


class ConformanceError(AssertionError):
    """A strategy departs from the strategy protocol.

    Args:
        check: Name of the check that found it.
        findings: What each rank saw, by rank; ranks that saw nothing wrong may be left out.
        in_step: Whether all processes went through the same, so that further checks make sense.

    Attributes:
        check, findings, in_step: As above.
    """

    def __init__(self, check: str, findings: Mapping[int, list[str]], *, in_step: bool = True) -> None:
        self.check = check
        self.findings = {rank: list(lines) for rank, lines in sorted(findings.items()) if lines}
        self.in_step = in_step
        super().__init__(f"{check}: the strategy departs from its protocol.\n{self.in_words()}")

    def in_words(self) -> str:
        """The findings, one a line; what several ranks saw alike is said once."""
        ranks: dict[str, list[int]] = {}
        for rank, lines in self.findings.items():
            for line in dict.fromkeys(lines):
                ranks.setdefault(line, []).append(rank)
        return "\n".join(f"rank {', '.join(map(str, who))}: {line}" for line, who in ranks.items())


@frozen
class Outcome:
    """How a check went.

    Attributes:
        check: Its name.
        promise: What of the protocol it checks.
        error: None if the strategy keeps the promise.
        has_run: Whether it ran; it does not where an earlier one left the processes out of step.
    """

    check: str
    promise: str
    error: ConformanceError | None = None
    has_run: bool = True


@frozen
class Report:
    """How all checks went; printed, it is a table."""

    outcomes: tuple[Outcome, ...]

    @property
    def passed(self) -> bool:
        """Whether every check ran and found nothing."""
        return all(outcome.has_run and outcome.error is None for outcome in self.outcomes)

    @property
    def failed(self) -> tuple[str, ...]:
        """Names of the checks that found something."""
        return tuple(outcome.check for outcome in self.outcomes if outcome.error is not None)

    def raise_if_failed(self) -> None:
        """Raise `AssertionError` with the whole table unless every check passed."""
        if not self.passed:
            raise AssertionError(f"The strategy departs from its protocol.\n{self}")

    def __str__(self) -> str:
        width = max((len(outcome.check) for outcome in self.outcomes), default=0)
        lines = []
        for outcome in self.outcomes:
            state = "not run" if not outcome.has_run else "passed" if outcome.error is None else "FAILED"
            lines.append(f"{state:8} {outcome.check:{width}}  {outcome.promise}")
            if outcome.error is not None:
                lines += [f"{'':9}{line}" for line in outcome.error.in_words().splitlines()]
        return "\n".join(lines)
