"""Conformance kit: run a trainer through scenarios and check its calls."""

from __future__ import annotations

import functools
import itertools
import tomllib
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import attrs

from camshaft.hooks_core.bases import Callback
from camshaft.hooks_core.catalogue import CATALOGUE, Catalogue
from camshaft.hooks_core.check import ConformanceError, check
from camshaft.hooks_core.spec import SKIP_EPOCH, VERBS, ZERO_GRADS, Receiver, Verb, ZeroGrad
from camshaft.hooks_core.support.messages import must_be
from camshaft.hooks_core.trace import Trace, check_without, frozen_names

_TABLE = tomllib.loads(Path(__file__).with_name("scenarios.toml").read_text(encoding="utf-8"))

FEATURES: dict[str, str] = _TABLE["features"]
"""Optional features of a trainer, by name."""

_STAGE_WORDS = {"fit": "train", "validate": "validation", "test": "test", "predict": "predict"}


@attrs.frozen
class Scenario:
    """Run that a trainer must carry out exactly.

    Args:
        name: Its name.
        description: What it tries, in words.
        verb: "fit", "validate", "test" or "predict".
        features: The names of the features that it needs; see `FEATURES`. "monitoring" and "after_module" add a
            callback that declares this; "skip_epoch_by_callback" lets one return -1 at `skip_at`.
        num_epochs: Training epochs to run.
        num_batches: Batches of each training epoch, or of the only epoch of another verb.
        num_val_batches: Batches of each validation inside fit; 0 runs none.
        val_check_interval: Validate after every so many training batches; None: after an epoch's last.
        num_sanity_val_batches: Batches of the sanity check; 0 runs none.
        accumulate_grad_batches: Batches whose gradients make one update.
        skip_at: `on_train_batch_start` returns -1 at this batch of the first epoch.
        no_loss_at: `training_step` returns None at this batch of each epoch.
        raise_in: A callback raises in this hook, the first time that it is called.
        override: Names of the overrides whose default is recorded as if the module had them.
    """

    name: str
    description: str
    verb: Verb = "fit"
    features: frozenset[str] = attrs.field(default=frozenset(), converter=frozen_names)
    num_epochs: int = 1
    num_batches: int = 3
    num_val_batches: int = 0
    val_check_interval: int | None = None
    num_sanity_val_batches: int = 0
    accumulate_grad_batches: int = 1
    skip_at: int | None = None
    no_loss_at: int | None = None
    raise_in: str | None = None
    override: tuple[str, ...] = attrs.field(default=(), converter=tuple)

    def missing(
        self, verbs: Collection[str] = VERBS, features: Collection[str] | None = None, without: Collection[str] = ()
    ) -> tuple[str, ...]:
        """Return the verb, features and hooks that a trainer lacks for it; the arguments are those of `certify`."""
        # without these it cannot run the scenario, or the trace shows nothing of what that tries
        hooks = {*self.override, *filter(None, [self.raise_in])}
        hooks |= {"on_train_batch_start"} if self.skip_at is not None else set()
        hooks |= {"on_before_optimizer_step"} if self.accumulate_grad_batches > 1 else set()
        lacking = [{self.verb} - {*verbs}, self.features - {*(FEATURES if features is None else features)}]
        lacking.append(hooks & {one.rpartition(":")[2] for one in without})
        return tuple(name for names in lacking for name in sorted(names))

    def expected_counts(self, zero_grad: ZeroGrad | None = None) -> dict[str, int]:
        """Return the expected number of calls per receiver, by hook; empty if the run raises.

        Args:
            zero_grad: Where the trainer zeroes gradients; None means "before_backward".
        """
        if self.raise_in is not None:
            return {}
        around = dict.fromkeys(("prepare_data", "setup", "configure_sharded_model", "configure_model", "teardown"), 1)
        around["on_exception"] = 0
        if self.verb != "fit":
            return around | _stage_counts(_STAGE_WORDS[self.verb], self.num_batches)
        is_skipped, epochs = self.skip_at is not None, self.num_epochs
        num_run = epochs * self.num_batches - (0 if self.skip_at is None else self.num_batches - self.skip_at)
        num_losses = num_run - (0 if self.no_loss_at is None else epochs)
        # a short last window counts
        num_full = epochs * -(-self.num_batches // self.accumulate_grad_batches)
        num_updates, num_windows = (num_losses, num_run) if self.accumulate_grad_batches == 1 else (num_full, num_full)
        # a window is zeroed before its first step's outcome
        opens_without_loss = zero_grad == "before_training_step"
        per_epoch = self.num_batches // (self.val_check_interval or self.num_batches)
        num_validations = epochs * per_epoch if self.num_val_batches else 0
        num_val_batches = num_validations * self.num_val_batches + self.num_sanity_val_batches
        has_sanity_check = int(self.num_sanity_val_batches > 0)
        return {
            **around,
            **_stage_counts("train", num_run, num_epochs=epochs),
            **_stage_counts("validation", num_val_batches, num_validations + has_sanity_check),
            **dict.fromkeys(("on_fit_start", "on_fit_end"), 1),
            **dict.fromkeys(("on_sanity_check_start", "on_sanity_check_end"), has_sanity_check),
            **dict.fromkeys(("on_before_backward", "on_after_backward"), num_losses),
            "on_train_batch_start": num_run + is_skipped,
            "on_before_zero_grad": num_windows if opens_without_loss else num_updates,
            "on_before_optimizer_step": num_updates,
        }


def _stage_counts(word: str, num_batches: int, num_runs: int = 1, num_epochs: int | None = None) -> dict[str, int]:
    counts = dict.fromkeys((f"on_{word}_start", f"on_{word}_end"), num_runs)
    counts |= dict.fromkeys((f"on_{word}_epoch_start", f"on_{word}_epoch_end"), num_epochs or num_runs)
    step = "training_step" if word == "train" else f"{word}_step"
    return counts | dict.fromkeys((f"on_{word}_batch_start", f"on_{word}_batch_end", step), num_batches)


SCENARIOS = tuple(Scenario(name, **facts) for name, facts in _TABLE["scenarios"].items())
"""Every scenario of the kit."""


@attrs.frozen
class Adapter:
    """Connection of the kit to a trainer.

    Args:
        run: Called as `run(scenario, module, callbacks)`: runs the trainer's verb `scenario.verb` with the numbers of
            batches and epochs that the scenario says, on this very module and these callbacks. With `make_data` or
            `make_strategy` it also gets `data=` or `strategy=`.
        make_module: Makes a module that defines the steps of every verb to be tried.
        make_data: Makes a data module, for trainers that have them.
        make_strategy: Makes a strategy, for trainers that have them.
    """

    run: Callable[..., Any]
    make_module: Callable[[], Any]
    make_data: Callable[[], Any] | None = None
    make_strategy: Callable[[], Any] | None = None


@attrs.frozen
class Outcome:
    """Outcome of a scenario: `error` is None if the trainer passed."""

    scenario: Scenario
    error: Exception | None = None


@attrs.frozen
class Report:
    """Outcomes of all scenarios.

    Args:
        outcomes: Those that ran.
        left_out: Those that did not run, each with the verb and features that it needs and that were not claimed.
    """

    outcomes: tuple[Outcome, ...]
    left_out: tuple[tuple[Scenario, tuple[str, ...]], ...] = ()

    @property
    def passed(self) -> bool:
        """True if no scenario failed."""
        return all(outcome.error is None for outcome in self.outcomes)

    def __str__(self) -> str:
        width = max(len(scenario.name) for scenario in SCENARIOS)
        lines = []
        for outcome in self.outcomes:
            name, what = outcome.scenario.name, outcome.scenario.description
            lines.append(f"{'passed' if outcome.error is None else 'FAILED':9} {name:{width}}  {what}")
            if outcome.error is not None:
                kind = "" if isinstance(outcome.error, ConformanceError) else f"{type(outcome.error).__name__}: "
                lines += [f"{'':10}{line}" for line in f"{kind}{outcome.error}".splitlines()]
        for scenario, needs in self.left_out:
            lines.append(f"{'left out':9} {scenario.name:{width}}  needs {', '.join(needs)}")
        return "\n".join(lines)


def conform(adapter: Adapter, **claims: Any) -> Report:
    """Run a trainer through every scenario that it claims to master, and raise if it fails one.

    Args:
        adapter: How to run it.
        claims: What it has and what not; see `certify`.

    Returns:
        The report, if no scenario failed.

    Raises:
        ConformanceError: If one failed; the message is the whole report.
        ValueError: As `certify`.
    """
    report = certify(adapter, **claims)
    if not report.passed:
        told = "The trainer departs from the hook protocol. Mend what the scenarios below found."
        raise ConformanceError(f"{told}\n{report}")
    return report


def certify(
    adapter: Adapter,
    *,
    verbs: Collection[str] = VERBS,
    features: Collection[str] | None = None,
    without: Collection[str] = (),
    scenarios: Sequence[Scenario] | None = None,
    zero_grad: ZeroGrad | None = None,
    catalogue: Catalogue = CATALOGUE,
) -> Report:
    """Return the report of a trainer on every scenario that it claims to master, whether it passes or not.

    Args:
        adapter: How to run it.
        verbs: The verbs that it has.
        features: The features that it has; None claims all of `FEATURES`.
        without: The hooks that it never calls; "module:on_exception" is one that it never calls on the module. They are
            not recorded, and scenarios that cannot do without them are left out.
        scenarios: The scenarios to choose from; None means `SCENARIOS`.
        zero_grad: Where it zeroes gradients, as `life_cycle` takes it; None for camshaft's own place.
        catalogue: The hooks that there are. Those that a third party registered without a place may be called
            at any time.

    Raises:
        ValueError: If a verb, a feature, a hook or the place of zeroing is unknown, or no scenario is left.
    """
    _check_known("zero_grad", [zero_grad] if zero_grad else [], ZERO_GRADS, "conform")
    missing = needs_of(verbs, features, without, scenarios=scenarios, catalogue=catalogue)
    chosen = [scenario for scenario, needs in missing.items() if not needs]
    if not chosen:
        raise ValueError(must_be("verbs", "those of at least one scenario", tuple(verbs), "conform", "Name a verb."))
    outcomes = []
    for scenario in chosen:
        outcome = Outcome(scenario)
        try:
            run_scenario(adapter, scenario, without=without, zero_grad=zero_grad, catalogue=catalogue)
        except Exception as error:  # one scenario's failure is reported with the others' results
            outcome = Outcome(scenario, error)
        outcomes.append(outcome)
    return Report(tuple(outcomes), tuple((scenario, needs) for scenario, needs in missing.items() if needs))


def needs_of(
    verbs: Collection[str] = VERBS,
    features: Collection[str] | None = None,
    without: Collection[str] = (),
    *,
    scenarios: Sequence[Scenario] | None = None,
    catalogue: Catalogue = CATALOGUE,
    where: str = "conform",
) -> dict[Scenario, tuple[str, ...]]:
    """Return the scenarios, each with what a trainer lacks for it; the arguments are those of `certify`.

    Raises:
        ValueError: If a verb, a feature or a hook is unknown; the message says where.
    """
    _check_known("verbs", verbs, VERBS, where)
    _check_known("features", features or (), tuple(FEATURES), where)
    check_without(without, where, catalogue)
    return {one: one.missing(verbs, features, without) for one in (SCENARIOS if scenarios is None else scenarios)}


def run_scenario(
    adapter: Adapter,
    scenario: Scenario,
    *,
    without: Collection[str] = (),
    zero_grad: ZeroGrad | None = None,
    catalogue: Catalogue = CATALOGUE,
) -> Trace:
    """Run a trainer through one scenario.

    Besides the order of calls it checks how often each hook was called, so that a trainer that runs fewer batches or
    epochs than the scenario has does not pass.

    Args:
        adapter: How to run the trainer.
        scenario: The scenario.
        without: The hooks that the trainer never calls, as `certify` takes them.
        zero_grad: Where it zeroes gradients, as `life_cycle` takes it; None for camshaft's own place.
        catalogue: The hooks that there are, as `certify` takes them.

    Returns:
        The trace.

    Raises:
        ConformanceError: If the trainer departs from the protocol or from the scenario.
        ValueError: If `zero_grad` is none of the places, or the module optimizes by hand or not at all.
        Exception: Whatever the trainer raises by itself.
    """
    trace = Trace(catalogue=catalogue, without=without)
    module, scripted = adapter.make_module(), Scripted()
    if scenario.no_loss_at is not None:
        _return_none_at(module, scenario.no_loss_at)
    if scenario.skip_at is not None:
        _skip_epoch_at(scripted if "skip_epoch_by_callback" in scenario.features else module, scenario.skip_at)
    if scenario.raise_in is not None:
        _changed(scripted, scenario.raise_in, _raise)
    declaring = [make() for feature, make in _DECLARING.items() if feature in scenario.features]
    callbacks: list[Callback] = [Plain(), *declaring, scripted]
    for callback in callbacks:
        trace.record(callback, Receiver.CALLBACK)
    extras: dict[str, Any] = {}
    if adapter.make_data is not None:
        extras["data"] = trace.record(adapter.make_data(), Receiver.DATA)
    trace.record(module, Receiver.MODULE, hooks=scenario.override)
    if adapter.make_strategy is not None:
        extras["strategy"] = trace.record(adapter.make_strategy(), Receiver.STRATEGY)
    try:
        adapter.run(scenario, module, callbacks, **extras)
    except ScriptedError:
        if scenario.raise_in is None:
            raise
    else:
        if scenario.raise_in is not None:
            raise ConformanceError(
                f"The trainer must let an exception that a hook raises reach its caller, but got none in the scenario "
                f"{scenario.name}, where {scenario.raise_in} raises. Raise it again after `teardown`."
            )
    check(trace, scenario.verb, catalogue=catalogue, zero_grad=zero_grad)
    _check_counts(trace, scenario, zero_grad)
    return trace


class ScriptedError(Exception):
    """Error that the kit's callback raises on purpose; a trainer must let it through."""


class Plain(Callback):
    """Callback that inherits every hook and overrides none."""


class Monitoring(Callback):
    """A callback that monitors: in `on_train_epoch_end` it comes after the module."""

    monitors = True


class AfterModule(Callback):
    """A callback that declared that it runs after the module where a batch ends and where a stage starts."""

    after_module = frozenset({"on_train_batch_end", "on_validation_start", "on_test_start", "on_predict_start"})


_DECLARING: dict[str, Callable[[], Callback]] = {"monitoring": Monitoring, "after_module": AfterModule}


class Scripted(Callback):
    """A callback that does what the scenario says: return -1 once, or raise once."""


def _changed(owner: Any, name: str, change: Callable[..., Any]) -> None:
    """Let a method of a receiver return what a function makes of the call: of its result, and of its arguments."""
    method = getattr(owner, name, lambda *args: None)  # some hooks have no default

    @functools.wraps(method)
    def changed(*args: Any, **kwargs: Any) -> Any:
        return change(method, *args, **kwargs)

    object.__setattr__(owner, name, changed)


def _raise(method: Any, *args: Any, **kwargs: Any) -> None:
    raise ScriptedError(f"raised on purpose in {method.__name__}")


def _return_none_at(module: Any, batch: int) -> None:
    """Let a module's `training_step` do its work, but return None for one batch of each epoch."""

    def change(step: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        result = step(*args, **kwargs)
        return None if batch in (*args[1:2], kwargs.get("batch_idx")) else result

    _changed(module, "training_step", change)


def _skip_epoch_at(receiver: Any, batch: int) -> None:
    """Let a receiver return -1 for one batch of the first epoch, which it knows by counting."""
    batches = itertools.count()

    def change(start: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        result = start(*args, **kwargs)
        return SKIP_EPOCH if next(batches) == batch else result

    _changed(receiver, "on_train_batch_start", change)


def _check_counts(trace: Trace, scenario: Scenario, zero_grad: ZeroGrad | None) -> None:
    counts = Counter((event.label, event.hook) for event in trace if event.kind == "enter")
    for hook, expected in scenario.expected_counts(zero_grad).items():
        for participant in trace.participants:
            got = counts[participant.label, hook]
            if hook in participant.hooks and got != expected:
                raise ConformanceError(
                    f"{hook} must be called {_times(expected)} on {participant.label}, but got {_times(got)} in the "
                    f"scenario {scenario.name}. Run as many epochs, batches and validations as the scenario says.",
                    hook=hook,
                )


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"


def _check_known(argument: str, names: Collection[str], known: Sequence[str], where: str) -> None:
    for name in names:
        if name not in known:
            raise ValueError(must_be(argument, f"among {', '.join(known)}", name, where, "Leave it out."))
