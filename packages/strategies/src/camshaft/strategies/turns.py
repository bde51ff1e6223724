"""Manual optimization on several logical ranks of one process: their steps take turns, and meet at each update."""

from __future__ import annotations

import contextvars
import random
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from camshaft.hooks_core.support.devices import make_current
from camshaft.hooks_core.support.messages import must_be
from camshaft.strategies.logical_ranks import LogicalRanks, copies_of, restore
from camshaft.strategies.tree import Tensors


class Turns:
    """The steps of a process's logical ranks, each in a thread of its own, of which one runs at a time.

    Where a step averages gradients or steps an optimizer, it waits until those of all others have come to the same
    place; then it is done once for all, with the state of the first one. So no step sees weights that another one's has
    updated before it. What a step finds and changes is its own: gradients, buffers, `requires_grad`, settings of
    optimizers, random numbers, torch's default dtype.

    Args:
        ranks: The logical ranks.
        step: Runs the step of one, given its index.
        switch: Called with the index of the logical rank that goes on.
        device: The strategy's device.
    """

    def __init__(
        self, ranks: LogicalRanks, step: Callable[[int], Any], switch: Callable[[int], None], device: torch.device
    ) -> None:
        self._ranks, self._step, self._switch, self._device = ranks, step, switch, device
        self._num_places = len(ranks.ranks)
        self._place = 0  # of the step that runs
        self._gates = [threading.Semaphore(0) for _ in ranks.ranks]
        self._threads = {
            place: threading.Thread(
                target=contextvars.copy_context().run, args=(self._run, place), name=f"logical rank {index}"
            )
            for place, index in enumerate(ranks.ranks)
            if place
        }
        self._met: list[str] = []
        self._result: Any = None
        self._losses: list[Any] = []
        self._outputs: list[Any] = [None] * self._num_places
        self._error: BaseException | None = None
        self._states: list[_State | None] = [None] * self._num_places
        self._holds_local = self._has_backward = False
        self._num_gradients = 0  # when the steps begin

    def run(self, windows: Sequence[Tensors | None]) -> list[Any]:
        """Run all steps. Returns what they return. The module is left with what the first one left.

        Args:
            windows: For each logical rank, its gradients of an open window; None for those that are in place.

        Raises:
            BaseException: What any of them raises.
            RuntimeError: If they average gradients, or step optimizers, in another order, or differentiate by
                themselves.
        """
        if self._num_places == 1:
            self._switch(self._ranks.ranks.start)
            return [self._step(self._ranks.ranks.start)]
        before = _State(self._ranks, self._device)
        self._num_gradients = _number_of(before.gradients)
        self._states[:] = [before, *(before.copy(window) for window in windows[1:])]
        self._switch(self._ranks.ranks[0])
        try:
            self._run(0)
        finally:
            for gate in self._gates:
                gate.release()
            for thread in self._threads.values():
                if thread.ident is not None:
                    thread.join()
        if self._error is not None:
            raise self._error
        self._load(0)
        return self._outputs

    def local_gradients(self) -> list[Tensors]:
        """Return the gradients of each logical rank; none if they are averages."""
        if self._num_places == 1 and self._holds_local:
            return [self._ranks.gradients()]
        return [state.gradients for state in self._states if state is not None] if self._holds_local else []

    def together(self, name: str, action: Callable[[], Any]) -> Any:
        """Call a function once, with the state of the first logical rank, when all steps have come here.

        What it changes in gradients and in the settings of optimizers counts for all.

        Args:
            name: What it is, by which steps are told apart that have come to something else.
            action: The function.

        Returns:
            What it returns, to all.
        """
        self._meet(name)
        if self._place == 0:
            before = self._seen()
            self._result = action()
            self._share_since(before)
        return self._result

    def step(self, name: str, step: Callable[[Callable[[], Any]], Any], closure: Callable[[], Any]) -> Any:
        """Step an optimizer once, whose closure evaluates the losses of all whenever it is called.

        Args:
            name: What it is, as for `together`.
            step: The optimizer's step, which gets a closure.
            closure: The closure of the step that runs.

        Returns:
            What the optimizer returns, to all.
        """
        self._meet(name)
        if self._place:
            while (result := self.together(name, _no_action)) is _EVALUATE:
                self._evaluate(closure)
            return result
        before = self._seen()

        def evaluate() -> Any:
            nonlocal before
            self.together(name, lambda: _EVALUATE)
            loss = self._evaluate(closure)
            before = self._seen()
            return loss

        result = step(evaluate)
        self._share_since(before)
        return self.together(name, lambda: result)

    def backward(self, loss: Tensor, differentiate: Callable[[Tensor], Any]) -> None:
        """Differentiate a step's loss, and average the gradients of all."""
        ranks = self._ranks
        self._has_backward, self._holds_local = True, not ranks.syncs
        if not ranks.syncs:
            differentiate(loss)
            return
        if self._place < self._num_places - 1:
            differentiate(loss)
            ranks.add_to_sums()
            self._meet("backward")
            return

        def average() -> None:
            ranks.average_last(loss, differentiate)
            mean = ranks.gradients()
            for state in self._states[:-1]:
                assert state is not None
                state.gradients = [None if one is None else one.clone() for one in mean]

        self._meet("backward", average)

    def _evaluate(self, closure: Callable[[], Any]) -> Any:
        """Call the closure of a step. Returns the mean of the losses of all logical ranks, by which optimizers decide.

        Collective.
        """
        with torch.enable_grad():
            own = closure()
        if not isinstance(own, (Tensor, float)):
            self._meet("evaluation")
            return own
        is_tensor = isinstance(own, Tensor)
        self._losses.append(own if is_tensor else torch.tensor(own, dtype=torch.float64, device=self._device))

        def average() -> None:
            losses, self._losses = self._losses, []
            self._result = self._ranks.mean_of(losses)

        self._meet("evaluation", average)
        return self._result if is_tensor else self._result.item()

    def _meet(self, name: str, last: Callable[[], None] | None = None) -> None:
        """Wait until all steps have come here; the first one goes on, after the last one has called `last`."""
        self._check_backward()
        self._met.append(name)
        if self._place == self._num_places - 1:
            names, self._met = self._met, []
            if any(one != name for one in names):
                raise _in_other_order(names)
            if last is not None:
                last()
        if self._num_places > 1:
            self._hand_over((self._place + 1) % self._num_places)

    def _check_backward(self) -> None:
        """Raise `RuntimeError` if gradients were computed that nobody averages."""
        if (
            not self._has_backward
            and self._num_places > 1
            and _number_of(self._ranks.gradients()) > self._num_gradients
        ):
            rule, got = "called by the strategy's `backward` inside a step", "gradients of one logical rank"
            action = "Call strategy.backward(loss), or manual_backward(loss), in place of loss.backward()."
            raise RuntimeError(must_be("loss.backward", rule, got, "training_step", action))

    def _seen(self) -> _Seen:
        """Return what changes unseen by the others: gradients, with their versions, and settings of optimizers."""
        if self._num_places == 1:
            return [], {}
        gradients = [(one, None if one is None else one._version) for one in self._ranks.gradients()]
        return gradients, _settings_of(self._ranks.optimizers)

    def _share_since(self, before: _Seen) -> None:
        """Give all others what the first one has changed."""
        gradients, settings = before
        others = [state for state in self._states[1:] if state is not None]
        for position, (one, version) in enumerate(gradients):
            now = self._ranks.parameters[position].grad
            if now is not one or (now is not None and now._version != version):
                for state in others:
                    state.gradients[position] = None if now is None else now.clone()
        for key, (group, then) in settings.items():
            changed = {name: value for name, value in group.items() if name not in then or then[name] is not value}
            for state in others if changed else ():
                state.settings[key][1].update(changed)

    def _run(self, place: int) -> None:
        """Run one step, and hand over to the next. The first one waits for all."""
        try:
            if place:
                make_current(self._device)
                torch.get_num_threads()  # takes the number that was set over to this thread
            self._outputs[place] = self._step(self._ranks.ranks[place])
            self._check_backward()
            self._met.append("end")
            if place < self._num_places - 1:
                self._hand_over(place + 1, waits=place == 0)
            elif any(one != "end" for one in self._met):
                raise _in_other_order(self._met)
            else:
                self._save(place)
                self._gates[0].release()
        except _AbandonedError:
            pass
        except BaseException as error:
            self._error = self._error or error
            for gate in self._gates:
                gate.release()

    def _hand_over(self, place: int, *, waits: bool = True) -> None:
        """Let another step go on, and wait for this one's turn."""
        own = self._place
        self._save(own)
        self._load(place)
        thread = self._threads.get(place)
        if thread is not None and thread.ident is None:
            thread.start()
        else:
            self._gates[place].release()
        if waits:
            self._gates[own].acquire()
            if self._error is not None:
                raise _AbandonedError

    def _save(self, place: int) -> None:
        self._states[place] = _State(self._ranks, self._device)

    def _load(self, place: int) -> None:
        state = self._states[place]
        assert state is not None
        state.restore()
        self._place = place
        self._switch(self._ranks.ranks[place])


def _settings_of(optimizers: Sequence[Optimizer]) -> _Settings:
    """Return the groups of parameters with copies of what they say, by their ids."""
    return {id(group): (group, {**group}) for optimizer in optimizers for group in optimizer.param_groups}


def _no_action() -> None:
    """Do nothing."""


def _number_of(gradients: Tensors) -> int:
    return sum(one is not None for one in gradients)


def _in_other_order(names: Sequence[str]) -> RuntimeError:
    rule, action = "the same on all logical ranks, in the same order", "Update on all ranks or on none."
    return RuntimeError(must_be("updates", rule, names, "training_step", action))


_EVALUATE = object()  # in place of a result: the optimizer asks for another evaluation
_Settings = dict[int, tuple[dict[str, Any], dict[str, Any]]]
_Seen = tuple[list[tuple[Tensor | None, int | None]], _Settings]


class _AbandonedError(BaseException):
    """Ends a step that waits, after another one failed."""


class _State:
    """State that a step may change without the others seeing it, as it is now."""

    def __init__(self, ranks: LogicalRanks, device: torch.device) -> None:
        self._ranks, self._device = ranks, device
        self.gradients = ranks.gradients()
        self.settings = _settings_of(ranks.optimizers)
        self._flags = [parameter.requires_grad for parameter in ranks.parameters]
        self._buffers = copies_of(ranks.module)
        self._dtype, self._syncs = torch.get_default_dtype(), ranks.syncs
        self._of_torch, self._of_python = torch.get_rng_state(), random.getstate()
        numpy = sys.modules.get("numpy")
        self._of_numpy = None if numpy is None else numpy.random.get_state()
        self._of_device = None
        if device.type != "cpu":
            self._of_device = torch.get_device_module(device).get_rng_state(device)

    def copy(self, gradients: Tensors | None) -> _State:
        """Return the same with gradients of its own: those given, or copies."""
        other = object.__new__(_State)
        vars(other).update(vars(self))
        copies: Tensors = [None if one is None else one.clone() for one in self.gradients]
        other.gradients = copies if gradients is None else gradients
        other.settings = {key: (group, {**copy}) for key, (group, copy) in self.settings.items()}
        return other

    def restore(self) -> None:
        """Put it in place."""
        for parameter, gradient, flag in zip(self._ranks.parameters, self.gradients, self._flags, strict=True):
            parameter.grad = gradient
            if parameter.requires_grad != flag:
                parameter.requires_grad_(flag)
        for group, settings in self.settings.values():
            group.update(settings)
        restore(self._buffers)
        torch.set_default_dtype(self._dtype)
        self._ranks.syncs = self._syncs
        torch.set_rng_state(self._of_torch)
        random.setstate(self._of_python)
        if self._of_numpy is not None:
            sys.modules["numpy"].random.set_state(self._of_numpy)
        if self._of_device is not None:
            torch.get_device_module(self._device).set_rng_state(self._of_device, self._device)
