"""`replay_capture`: a replay whose loader has the batches that were captured of one update."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from camshaft.forensics.ledger.ledger_file import determinism, name_of_device, versions
from camshaft.forensics.replay.step import ReplayedStep, StepWatch, fit_again
from camshaft.forensics.replay.step_capture import (
    CapturedStep,
    CaptureError,
    captures_in,
    is_non_finite,
    loss_in,
    read_capture,
)
from camshaft.hooks_core import Receiver, no_op
from camshaft.hooks_core.dispatch.implementation import implementation
from camshaft.hooks_core.support.messages import must_be, warn_user
from camshaft.loops.state.random_state import isolated_randomness, restore_random_state
from camshaft.trainer import Trainer
from camshaft.trainer.load_from_checkpoint import built
from camshaft.trainer.running import VerbCall


def replay_capture(
    folder: str | os.PathLike[str],
    module: Any = None,
    *,
    step: int | None = None,
    rank: int | None = None,
    weights_only: bool | None = None,
    debug: bool = False,
) -> ReplayedStep:
    """Make a captured training step again, forward and backward, and look into it.

    It is a `replay` in a fit of its own, in this process alone, on a GPU if it was captured on one and there is one: a
    `Trainer` of the captured precision calls the module's hooks up to the update, which is not made; with several
    optimizers or manual optimization, to the end of the batch. Weights, buffers, modes, optimizers' states, random
    numbers and batches are the captured ones. What else the module keeps in attributes is as its constructor and its
    hooks leave it.

    Args:
        folder: The folder with the captures, or its URL.
        module: The module, whose weights become the captured ones; or its class, which is built with the captured
            hyperparameters; or a function that returns it.
        step: Number of the captured update; None takes the first one.
        rank: The process whose capture is taken; None takes the first one whose loss was not finite, else the first.
        weights_only: False unpickles objects in the capture, such as batches of classes of one's own, which can run any
            code: only for files from a source that you trust.
        debug: Whether to stop in `training_step` with Python's debugger, at the first batch whose loss was not finite;
            leaving it raises `bdb.BdbQuit`.

    Returns:
        The step. If `training_step` was called several times for the update, as with gradient accumulation, all are
        made again; it is the one whose loss was not finite, else the first in which something is not finite, else the
        last.

    Raises:
        FileNotFoundError: If the folder holds no capture, or none of that step and rank.
        CaptureError: If the capture is damaged or of another module, or needs `weights_only=False`.
        TypeError: If `module` is none of these.

    Warns:
        UserWarning: If a loss is another one than the captured, bit for bit; the result's `differences` say it too.
    """
    path, capture = find_capture(folder, step, rank, weights_only)
    with isolated_randomness():
        replayed = make_again(capture, module_for(capture, module, path, weights_only), debug=debug)
    if replayed.differences:
        listed = "; ".join(replayed.differences)
        warn_user(f"The step differs from the captured one: {listed}. Use the same code, versions and device.")
    return replayed


def find_capture(
    folder: str | os.PathLike[str], step: int | None, rank: int | None, weights_only: bool | None
) -> tuple[str, CapturedStep]:
    """Return the path of a capture and what it holds; the arguments are those of `replay_capture`."""
    paths = captures_in(folder)
    chosen = min(paths)[0] if step is None else step
    fitting = [path for key, path in paths.items() if key[0] == chosen and rank in (None, key[1])]
    if not fitting:
        there = ", ".join(f"step {number} of rank {of_rank}" for number, of_rank in paths)
        rule, action = f"those of a capture ({there})", "Pass others, or leave them out."
        raise FileNotFoundError(must_be("step and rank", rule, (step, rank), "replay_capture", action))
    first = fitting[0], read_capture(fitting[0], weights_only)
    rest = ((path, read_capture(path, weights_only)) for path in fitting[1:])
    return next((one for one in chain([first], rest) if one[1].has_non_finite_loss), first)


def module_for(capture: CapturedStep, module: Any, path: str, weights_only: bool | None = None) -> nn.Module:
    """Return the module for a capture; see `replay_capture`. Raises `TypeError` if there is none."""
    if isinstance(module, type):
        module = built(module, dict(capture.facts), "", None, {}, path, None, weights_only)
    elif callable(module) and not isinstance(module, nn.Module):
        module = module()
    if not isinstance(module, nn.Module):
        rule = f"a module, its class, or a function that returns it; the captured one is a {capture.module}"
        action = "Pass the module: a capture holds data alone."
        raise TypeError(must_be("module", rule, module, "replay_capture", action))
    return module


def make_again(capture: CapturedStep, module: nn.Module, *, debug: bool = False) -> ReplayedStep:
    """Return the step of a capture, made again with a module; draws random numbers.

    Raises:
        CaptureError: If they do not fit, or the batch was not unpickled.
    """
    if capture.left_out:
        raise CaptureError(
            f"`capture` must be complete, but it has a {capture.left_out[0]} that was not unpickled, in "
            "replay_capture. Pass weights_only=False if you trust the file."
        )
    settings = capture.settings
    bad_idx = next((idx for idx, call in enumerate(capture.calls) if is_non_finite(call)), None)
    batches: Any = list({call.batch_idx: copy.deepcopy(call.batch) for call in capture.calls}.values())
    loader: Any = DataLoader(batches, batch_size=None, collate_fn=_batch_as_it_is)
    watch = _CapturedCalls(capture, debug, bad_idx or 0)
    trainer = Trainer(
        accelerator="gpu" if settings["device"] == "cuda" and torch.cuda.is_available() else "cpu",
        devices=1,
        precision=settings["precision"],
        max_epochs=capture.epoch + 1,
        accumulate_grad_batches=len(batches),
        limit_val_batches=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        deterministic=settings["deterministic_algorithms"] or None,
    )
    progress = trainer.fit_loop.progress
    progress.global_step, progress.current_epoch = capture.step - 1, capture.epoch
    with _switches(settings):
        fit_again(trainer, VerbCall("fit", module, {"train": loader, "validate": None}), watch)
    steps = watch.steps
    if bad_idx is None:
        bad_idx = next((idx for idx, step in enumerate(steps) if step.inspection.origins), len(steps) - 1)
    found = steps[bad_idx]
    found.batch_idx, found.differences = capture.calls[bad_idx].batch_idx, watch.differences
    return found


_LEFT_OUT = ("on_before_batch_transfer", "on_after_batch_transfer", "transfer_batch_to_device")
"""Hooks whose work was done on a captured batch, but for its move to the device."""


class _CapturedCalls(StepWatch):
    """Makes captured calls of `training_step` in place of those of a replay.

    Attributes:
        differences: In what the losses differ from the captured ones.
    """

    def __init__(self, capture: CapturedStep, debug: bool, debugged_idx: int) -> None:
        super().__init__(capture.step, debug=debug, debugged_idx=debugged_idx)
        self.differences: list[str] = []
        self._capture = capture
        self._num_made = 0

    def wrap_call(
        self, hook: str, kind: Receiver, receiver: object, function: Callable[..., Any]
    ) -> Callable[..., Any]:
        """Return the function; of a step, and of what was done to its batch already, one in its place."""
        if hook == "prepare_data":
            return no_op
        return _batch_as_it_is if hook in _LEFT_OUT else super().wrap_call(hook, kind, receiver, function)

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """End the replay after the last call, where no update has ended it."""
        super().on_train_batch_end(trainer, module, outputs, batch, batch_idx)
        if self._num_made == len(self._capture.calls):
            self.end(self._capture.step)

    def call_step(self, function: Callable[..., Any], *_: Any, **__: Any) -> Any:
        """Make the next captured call."""
        strategy, module, captured = self.trainer.strategy, self.module, self._capture.calls[self._num_made]
        if self._num_made == 0:
            put_state(self._capture, module, self.trainer)
        self._num_made += 1
        for name, part in module.named_modules():
            part.training = self._capture.modes[name]
        batch, rest, keywords = copy.deepcopy((captured.batch, captured.arguments, captured.keywords))
        move = implementation(module, "transfer_batch_to_device")
        batch = strategy.batch_to_device(batch) if move is None else move(batch, strategy.device, 0)
        rest, keywords = strategy.batch_to_device((rest, keywords))

        restore_random_state(captured.random_state)
        outputs = super().call_step(function, batch, *rest, **keywords)
        loss = loss_in(outputs)
        now, was = _described(loss), _described(captured.loss)
        if captured.has_returned and now != was:
            of_call = f" of call {self._num_made} for the update" if len(self._capture.calls) > 1 else ""
            self.differences.append(f"the loss{of_call} is {now}, but {was} was captured")
        return outputs


def _batch_as_it_is(batch: Any, *_: Any, **__: Any) -> Any:
    return batch


def put_state(capture: CapturedStep, module: nn.Module, trainer: Any) -> None:
    """Give module, optimizer and strategy the captured state.

    Raises:
        CaptureError: If the module has other parameters, buffers or submodules, or the optimizer is another one.
    """
    parameters, buffers = dict(module.named_parameters()), dict(module.named_buffers())
    modules = dict(module.named_modules())
    _check_names("parameter", capture, capture.parameters, parameters)
    _check_names("submodule", capture, capture.modes, modules)
    with torch.no_grad():
        for name, one in parameters.items():
            one.requires_grad_(name in capture.requires_grad)
            one.copy_(capture.parameters[name])
        for name, values in capture.buffers.items():
            owner, _, own_name = name.rpartition(".")
            if own_name not in modules[owner]._buffers:
                raise _does_not_fit(capture, f"it has no buffer {name}")
            buffer = buffers.get(name)
            if buffer is not None and buffer.shape == values.shape:
                buffer.copy_(values)
            else:  # one that grows, or is made in the first step
                modules[owner]._buffers[own_name] = values.to(trainer.strategy.device, copy=True)
        for name, gradient in capture.gradients.items():
            parameters[name].grad = gradient.to(parameters[name].device, copy=True)
    try:
        for optimizer, state in zip(trainer.optimizers, capture.optimizers, strict=True):
            optimizer.load_state_dict(copy.deepcopy(state))
    except (ValueError, KeyError) as error:
        raise _does_not_fit(capture, f"its optimizers do not take the captured states ({error})") from error
    trainer.strategy.load_state_dict(capture.strategy)


def _check_names(kind: str, capture: CapturedStep, expected: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    for name in expected:
        if name not in found:
            raise _does_not_fit(capture, f"it has no {kind} {name}")
    for name, one in found.items():
        if name not in expected:
            raise _does_not_fit(capture, f"it has a further {kind}, {name}")
        if isinstance(one, Tensor) and one.shape != expected[name].shape:
            shapes = f"{tuple(one.shape)}, not {tuple(expected[name].shape)}"
            raise _does_not_fit(capture, f"its {kind} {name} has the shape {shapes}")


def _does_not_fit(capture: CapturedStep, problem: str) -> CaptureError:
    return CaptureError(
        f"`module` must be the captured one (a {capture.module}), but {problem}, in replay_capture. "
        "Pass that module, built with the same arguments."
    )


@contextmanager
def _switches(settings: Mapping[str, Any]) -> Iterator[None]:
    """Set switches on which the bits of results depend as they were captured; restore them afterwards."""

    def switch(values: Mapping[str, Any]) -> None:
        torch.set_num_threads(values["num_threads"])
        torch.set_float32_matmul_precision(values["float32_matmul_precision"])
        torch.backends.cudnn.deterministic = values["cudnn_deterministic"]
        torch.backends.cudnn.benchmark = values["cudnn_benchmark"]

    before = determinism()
    switch(settings)
    try:
        yield
    finally:
        switch(before)


def _described(loss: Tensor | None) -> str:
    """Return the values of a loss, to the bit, and its dtype."""
    return "none" if loss is None else f"{loss.tolist()!r} ({loss.dtype})".replace("torch.", "")


def circumstances(capture: CapturedStep) -> list[str]:
    """Return what is not as it was captured, on which the bits of results may depend; empty if nothing is known."""
    device = name_of_device(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    now = {**versions(), "device": device}
    was = {**capture.versions, "device": capture.settings["device_name"]}
    found = [f"{name} {now.get(name)} (was {former})" for name, former in was.items() if now.get(name) != former]
    return [*found, *(["submodules were compiled"] if capture.settings["is_compiled"] else [])]
