from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import handwritten_loop
import pytest
import recorded_runs
import sentences
from recorded_runs import First, Second, departure, recorded, without

from camshaft.hooks_core import CATALOGUE, Callback, HookSpec, Receiver
from camshaft.hooks_core.check import ConformanceError, check
from camshaft.hooks_core.eras.hooks import catalogue_of
from camshaft.hooks_core.eras.orders import life_cycle_of_version
from camshaft.hooks_core.grammar.nodes import hooks_in
from camshaft.hooks_core.trace import Event, Participant, Trace


@pytest.mark.parametrize("verb", ["fit", "validate", "test", "predict"])
def test_a_right_run_is_accepted(verb: str) -> None:
    check(recorded(verb=verb), verb)


def test_a_run_of_another_verb_is_not() -> None:
    error = departure(recorded(verb="test"), "predict")
    assert error.event is not None
    assert error.event.hook == "on_test_start"


def test_the_error_says_where_what_who_and_what_was_expected() -> None:
    trace = recorded()
    index = without(trace, "callback:Second", hook="on_fit_start")
    error = departure(trace)
    assert error.index == index
    assert error.event == Event("enter", "on_fit_start", "Model", Receiver.MODULE)
    assert error.expected == ("on_fit_start on callback:Second",)
    message = str(error)
    assert message.startswith(
        f"`trace[{index}]` must be on_fit_start on callback:Second, but got on_fit_start on module:Model in the life "
        "cycle of fit. Make the calls in the order that `python -m camshaft.hooks_core show fit` prints."
    )
    assert message.endswith(f"trace[{index - 1}]: exit on_fit_start callback:First")
    assert isinstance(error, AssertionError)


def test_all_alternatives_are_expected() -> None:
    trace = recorded()
    without(trace, "callback:First", hook="on_train_start")
    assert set(departure(trace).expected) == {
        "on_sanity_check_start on callback:First",
        "on_train_start on callback:First",
        "on_fit_end on callback:First",
    }


def test_a_run_that_ends_too_early_says_what_is_missing() -> None:
    trace = recorded()
    del trace.events[-2:]
    error = departure(trace)
    assert (error.index, error.event, error.expected) == (len(trace), None, ("teardown on module:Model",))
    assert "but got the end of the trace" in str(error)


def test_a_run_whose_last_call_never_returned_says_so() -> None:
    trace = recorded()
    del trace.events[-1]
    assert departure(trace).expected == ("the end of teardown on module:Model",)


def test_what_follows_the_end_of_the_run_departs() -> None:
    trace = recorded()
    trace.events += trace.events[:2]
    error = departure(trace)
    assert error.index == len(trace) - 2
    assert error.expected == ("the end of the run",)


def test_an_exit_without_its_enter_departs() -> None:
    trace = recorded()
    del trace.events[0]
    assert departure(trace).expected == ("a call to begin",)
    trace.events[:] = [Event("enter", "prepare_data", "Data", "data"), Event("exit", "setup", "First", "callback")]  # type: ignore[arg-type]
    assert departure(trace).expected == ("the end of prepare_data on data:Data",)


def test_a_callback_that_monitors_ahead_of_the_module_departs() -> None:
    trace = recorded()
    of_hook = [index for index, event in enumerate(trace.events) if event.hook == "on_train_epoch_end"]
    first = of_hook[0]
    assert [trace.events[index].label for index in of_hook[::2]] == [
        "callback:First",
        "module:Model",
        "callback:Second",
    ]
    trace.events[first + 2 : first + 6] = trace.events[first + 4 : first + 6] + trace.events[first + 2 : first + 4]
    error = departure(trace)
    assert (error.index, error.expected) == (first + 2, ("on_train_epoch_end on module:Model",))


def test_callbacks_run_in_the_order_in_which_they_were_recorded() -> None:
    trace = recorded()
    trace.participants[:2] = trace.participants[1::-1]
    assert departure(trace).expected == ("setup on callback:Second",)


@pytest.mark.parametrize("owner", ["data", "module"])
def test_a_transform_is_called_on_the_data_module_if_it_has_one(owner: str) -> None:
    trace = recorded(verb="test")
    for position, participant in enumerate(trace.participants):
        if participant.kind in (Receiver.DATA, Receiver.MODULE):
            hooks = participant.hooks | {"transfer_batch_to_device"}
            trace.participants[position] = attrs.evolve(participant, hooks=hooks)
    name = {"data": "Data", "module": "Model"}[owner]
    events = []
    for event in trace.events:
        if (event.kind, event.hook, event.receiver) == ("enter", "on_test_batch_start", "First"):
            events += [Event(kind, "transfer_batch_to_device", name, owner) for kind in ("enter", "exit")]  # type: ignore[arg-type]
        events.append(event)
    trace.events[:] = events
    if owner == "data":
        check(trace, "test")
    else:
        assert "transfer_batch_to_device on data:Data" in departure(trace, "test").expected


def test_hooks_that_provide_may_be_called_at_any_time() -> None:
    class Providing(handwritten_loop.Model):
        def train_dataloader(self) -> list[int]:
            return [1, 2]

        def configure_optimizers(self) -> str:
            return "optimizer"

    class Asking(handwritten_loop.Trainer):
        def optimize(self, epoch: int, batch_idx: int) -> Any:
            self.hooks.train_dataloader()
            self.hooks.configure_optimizers()
            return super().optimize(epoch, batch_idx)

    trace = recorded(Providing, Asking)
    assert sum(event.hook == "train_dataloader" for event in trace) == 4
    check(trace, "fit")


def test_hooks_of_a_third_party_may_be_called_at_any_time() -> None:
    catalogue = CATALOGUE.copy()
    catalogue.register(HookSpec("on_lunch", "At noon.", (Receiver.CALLBACK,)))
    trace = recorded()
    trace.events[20:20] = [Event(kind, "on_lunch", "First", "callback") for kind in ("enter", "exit")]  # type: ignore[arg-type]
    check(trace, "fit", catalogue=catalogue)
    error = departure(trace)
    assert (error.index, error.expected) == (20, ("a hook of the catalogue",))


class SkippingModel(handwritten_loop.Model):
    def on_train_batch_start(self, batch: Any, batch_idx: int) -> int | None:
        return -1 if batch_idx == 1 else None


def test_minus_one_ends_the_epochs_batches_and_its_end_hooks_still_run() -> None:
    check(recorded(SkippingModel, num_epochs=2), "fit")


def test_going_on_after_minus_one_departs() -> None:
    class Deaf(handwritten_loop.Trainer):
        def run_epoch(self, epoch: int) -> None:
            heard = self.hooks.on_train_batch_start
            self.hooks.on_train_batch_start = lambda *arguments: heard(*arguments) and None
            super().run_epoch(epoch)

    error = departure(recorded(SkippingModel, Deaf))
    assert error.event is not None
    assert error.event.hook == "training_step"
    assert "on_train_epoch_end on callback:First" in error.expected


def test_stopping_an_epoch_with_a_batch_that_did_not_end_departs() -> None:
    class Hasty(handwritten_loop.Trainer):
        def optimize(self, epoch: int, batch_idx: int) -> Any:
            return None

    error = departure(recorded(trainer=Hasty))
    assert error.expected == ("training_step on module:Model",)


class Undecided(handwritten_loop.Model):
    def training_step(self, batch: Any, batch_idx: int) -> float | None:  # type: ignore[override]
        return None if batch_idx == 0 else 1.0


def test_a_step_that_returns_none_is_followed_by_no_backward() -> None:
    check(recorded(Undecided), "fit")
    check(recorded(Undecided, hooks=("optimizer_step",)), "fit")


def test_backward_after_none_departs() -> None:
    class Eager(handwritten_loop.Trainer):
        def optimize(self, epoch: int, batch_idx: int) -> Any:
            self.hooks.training_step("batch", batch_idx)
            self.hooks.on_before_zero_grad(None)
            self.hooks.on_before_backward(1.0)

    error = departure(recorded(Undecided, Eager))
    assert error.event is not None
    assert error.event.hook == "on_before_backward"


def test_accumulation_zeroes_only_at_the_beginning_of_a_window() -> None:
    check(recorded(accumulate_grad_batches=2), "fit")

    class Forgetful(handwritten_loop.Trainer):
        def optimize(self, epoch: int, batch_idx: int) -> Any:
            outputs = self.hooks.training_step("batch", batch_idx)
            self.hooks.on_before_zero_grad(None)
            self.hooks.on_before_backward(outputs)
            self.hooks.on_after_backward()
            if batch_idx == 1:
                self.hooks.on_before_optimizer_step(None)

    error = departure(recorded(trainer=Forgetful))
    assert error.event is not None
    assert (error.event.hook, error.expected) == ("on_before_zero_grad", ("on_before_backward on callback:First",))


def test_an_overridden_optimizer_step_encloses_what_its_closure_runs() -> None:
    trace = recorded(hooks=("optimizer_step",))
    check(trace, "fit")
    start = next(index for index, event in enumerate(trace.events) if event.hook == "optimizer_step")
    assert trace.events[start + 1].hook == "training_step"


def test_optimizer_step_behind_backward_departs_today_and_is_right_in_2_x() -> None:
    class InLine(handwritten_loop.Trainer):
        def optimize(self, epoch: int, batch_idx: int) -> Any:
            self.hooks.on_before_zero_grad(None)
            outputs = self.hooks.training_step("batch", batch_idx)
            self.hooks.on_before_backward(outputs)
            self.hooks.on_after_backward()
            self.hooks.on_before_optimizer_step(None)
            self.hooks.optimizer_step(epoch, batch_idx, self.optimizer, None)

    trace = recorded(trainer=InLine, hooks=("optimizer_step",))
    trace.protocol = "2.x"
    check(trace, "fit")
    trace.protocol = None
    error = departure(trace)
    assert error.event is not None
    assert error.event.hook == "on_before_zero_grad"


def test_under_manual_optimization_the_module_chooses_the_order_inside_of_its_step() -> None:
    class Manual(handwritten_loop.Model):
        automatic_optimization = False
        emit: Callable[[str], Any]

        def training_step(self, batch: Any, batch_idx: int) -> None:  # type: ignore[override]
            for hook in (
                "on_before_optimizer_step",
                "on_before_backward",
                "on_after_backward",
                "on_before_optimizer_step",
            ):
                self.emit(hook)

    class ByHand(handwritten_loop.Trainer):
        def optimize(self, epoch: int, batch_idx: int) -> Any:
            Manual.emit = lambda _, hook: getattr(self.hooks, hook)(*CATALOGUE[hook].parameters)  # type: ignore[method-assign]
            return self.hooks.training_step("batch", batch_idx)

    trace = recorded(Manual, ByHand)
    check(trace, "fit")
    assert departure(trace, optimization="automatic").event is not None
    del trace.events[-2:]
    assert "show fit --optimization manual` prints." in str(departure(trace))


def test_without_optimizers_there_is_nothing_around_the_step() -> None:
    class Fixed(handwritten_loop.Model):
        def configure_optimizers(self) -> None: ...

    class Forward(handwritten_loop.Trainer):
        def fit(self) -> None:
            self.hooks.configure_optimizers()
            super().fit()

        def optimize(self, epoch: int, batch_idx: int) -> Any:
            return self.hooks.training_step("batch", batch_idx)

    trace = recorded(Fixed, Forward)
    check(trace, "fit")
    assert departure(trace, optimization="automatic").expected == ("on_before_zero_grad on callback:First",)


def test_a_run_that_goes_on_from_a_checkpoint_may_begin_within_an_epoch() -> None:
    trace = recorded()
    beginning = without(trace, *(one.label for one in trace.participants), hook="on_train_epoch_start")
    error = departure(trace)
    assert error.index == beginning
    assert "on_train_epoch_start on callback:First" in error.expected
    where = next(index for index, event in enumerate(trace.events) if event.hook == "on_fit_start")
    trace.events[where:where] = [
        Event(kind, "on_load_checkpoint", one.name, one.kind)  # type: ignore[arg-type]
        for one in sorted(trace.participants, key=lambda one: one.rank("on_load_checkpoint"))
        if "on_load_checkpoint" in one.hooks
        for kind in ("enter", "exit")
    ]
    check(trace, "fit")


def test_a_loaded_trace_is_checked_like_the_one_that_was_saved(tmp_path: Path) -> None:
    trace = recorded()
    trace.save(tmp_path / "trace.jsonl")
    check(Trace.load(tmp_path / "trace.jsonl"), "fit")


def test_a_trace_of_an_old_era_is_checked_by_that_eras_order() -> None:
    class Old:
        def training_step(self, batch: Any, batch_idx: int) -> float:
            return 1.0

    def run(zero_last: bool) -> Trace:
        trace = Trace(catalogue_of("0.8"))
        module: Any = trace.record(Old(), "module")
        module.prepare_data()
        module.setup("fit")
        module.on_fit_start()
        module.on_train_start()
        module.on_epoch_start()
        module.on_batch_start("batch")
        module.training_step("batch", 0)
        if not zero_last:
            module.on_before_zero_grad("optimizer")
        module.on_after_backward()
        if zero_last:
            module.on_before_zero_grad("optimizer")
        module.on_batch_end()
        module.on_epoch_end()
        module.on_train_end()
        module.on_fit_end()
        module.teardown("fit")
        return trace

    check(run(zero_last=True), "fit")
    error = departure(run(zero_last=False))
    assert error.expected == ("on_after_backward on module:Old",)
    assert "`python -m camshaft.hooks_core show fit --era 0.8` prints." in str(error)


def test_a_verb_that_the_era_lacks_is_an_error() -> None:
    with pytest.raises(ValueError, match="`verb` must be one of fit, test for era"):
        check(Trace(catalogue_of("0.5")), "predict")


def test_a_trace_of_today_holds_nothing_of_eras() -> None:
    trace = recorded_runs.recorded()
    assert [one.version for one in trace.participants] == [None] * len(trace.participants)


VERSIONS = ("0.5", "0.7", "0.8", "0.9", "1.0", "1.2", "1.5", "1.9")


def of_version(version: str) -> list[Participant]:
    """Receivers that have every hook that a run of a version may call."""
    nodes = [life_cycle_of_version(verb, version) for verb in ("fit", "validate", "test", "predict")]
    placed = frozenset(name for node in nodes for name in hooks_in(node))
    found = []
    for one in sentences.participants():
        known = {name for name in placed if one.kind in sentences.HOOKS[name].receivers}
        is_old = one.kind is Receiver.MODULE
        found.append(
            Participant(one.name, one.kind, one.hooks | known, one.after_module, version=version if is_old else None)
        )
    return found


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("verb", ["fit", "validate", "test", "predict"])
def test_a_sentence_of_a_versions_life_cycle_passes_and_one_cut_short_does_not(verb: str, version: str) -> None:
    everybody = of_version(version)
    node = life_cycle_of_version(verb, version)
    for seed in range(8):
        trace = Trace()
        trace.participants = everybody
        trace.events = sentences.Writer(everybody, random.Random(seed)).write(node)
        trace.events += [  # what says that the loop optimizes
            Event("enter", "configure_optimizers", "module", Receiver.MODULE),
            Event("exit", "configure_optimizers", "module", Receiver.MODULE, result="Optimizer"),
        ]
        check(trace, verb)
        last = max(index for index, event in enumerate(trace.events) if event.hook == "teardown")
        del trace.events[last - 1 : last + 1]
        with pytest.raises(ConformanceError):
            check(trace, verb)


def broken(hook: str) -> type:
    """A callback that raises in a hook."""

    def explode(self: object, *arguments: Any) -> None:
        raise RuntimeError("on purpose")

    return type("Broken", (Callback,), {hook: explode})


@pytest.mark.parametrize("hook", ["setup", "on_fit_start", "on_train_batch_start", "on_before_backward", "on_fit_end"])
@pytest.mark.parametrize("overridden", [(), ("optimizer_step",)])
def test_a_run_that_raised_is_right_if_everybody_is_told_and_torn_down(hook: str, overridden: tuple[str, ...]) -> None:
    trace = recorded(callbacks=(First, broken(hook), Second), hooks=overridden)
    check(trace, "fit")


@pytest.mark.parametrize("hook", ["on_exception", "teardown"])
def test_handlers_that_raise_do_not_end_the_run_for_the_others(hook: str) -> None:
    trace = recorded(callbacks=(First, broken("on_fit_start"), broken(hook), Second))
    assert sum(bool(event.raised) for event in trace) == 2
    check(trace, "fit")
    check(recorded(callbacks=(First, broken("teardown"), Second)), "fit")


def test_an_exception_outside_of_every_hook_is_right_too() -> None:
    class Failing(handwritten_loop.Trainer):
        def optimize(self, epoch: int, batch_idx: int) -> Any:
            raise OSError("the loader failed")

    with pytest.raises(OSError, match="the loader failed"):
        recorded(trainer=Failing)

    trace = recorded()
    cut = next(index for index, event in enumerate(trace.events) if event.hook == "training_step")
    tail = [
        Event(kind, hook, one.name, one.kind)  # type: ignore[arg-type]
        for hook in ("on_exception", "teardown")
        for one in trace.participants
        if hook in one.hooks
        for kind in ("enter", "exit")
    ]
    trace.events[cut:] = tail
    check(trace, "fit")


def test_a_run_that_goes_on_after_an_exception_departs() -> None:
    trace = recorded(callbacks=(First, broken("on_train_epoch_start")))
    raised = next(index for index, event in enumerate(trace.events) if event.raised)
    trace.events[raised + 1 : raised + 1] = [Event("enter", "on_train_epoch_start", "Model", "module")]  # type: ignore[arg-type]
    error = departure(trace)
    assert (error.index, error.expected) == (raised + 1, ("on_exception on callback:First",))


def test_an_exception_that_an_enclosing_hook_keeps_to_itself_departs() -> None:
    trace = recorded(callbacks=(First, broken("on_before_backward")), hooks=("optimizer_step",))
    index = next(i for i, event in enumerate(trace.events) if event.hook == "optimizer_step" and event.raised)
    trace.events[index] = Event("exit", "optimizer_step", "Model", "module")  # type: ignore[arg-type]
    assert departure(trace).expected == ("RuntimeError to leave optimizer_step on module:Model",)


def test_telling_nobody_of_an_exception_departs() -> None:
    trace = recorded(callbacks=(First, broken("on_fit_start")))
    index = without(trace, *(one.label for one in trace.participants), hook="on_exception")
    error = departure(trace)
    assert (error.index, error.expected) == (index, ("on_exception on callback:First",))


def test_tearing_down_twice_departs() -> None:
    trace = recorded(callbacks=(First, broken("on_fit_start")))
    trace.events += [event for event in trace.events if event.hook == "teardown"]
    assert departure(trace).expected == ("the end of the run",)


def test_a_receiver_that_raised_while_tearing_down_is_not_torn_down_again() -> None:
    trace = recorded(callbacks=(broken("teardown"), Second))
    check(trace, "fit")
    trace.events += [Event(kind, "teardown", "Broken", "callback") for kind in ("enter", "exit")]  # type: ignore[arg-type]
    assert departure(trace).event is not None
