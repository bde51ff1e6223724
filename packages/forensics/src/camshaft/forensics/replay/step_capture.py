"""Captured training steps: batches and state from just before a step, in a file from which it is made again.

A capture holds data, no code: to make the step again takes the module that it was captured from. It is a replay whose
loader has the batches that were captured of one update.
"""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from inspect import signature
from itertools import chain
from typing import TYPE_CHECKING, Any

import attrs
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from camshaft.callbacks.arguments import InvalidArgumentError, check_number, usable_path
from camshaft.forensics.ledger.ledger_file import determinism, versions
from camshaft.forensics.replay.step import ReplayedStep, StepWatch, fit_again, loss_in
from camshaft.hooks_core import Receiver, no_op
from camshaft.hooks_core.dispatch.implementation import implementation
from camshaft.hooks_core.support.devices import name_of_device
from camshaft.hooks_core.support.messages import must_be, warn_user
from camshaft.hooks_core.support.optimizer_step import needs_closure
from camshaft.hooks_core.support.remote_files import absolute, entries_of, join
from camshaft.loops.state.random_state import isolated_randomness, random_state, restore_random_state
from camshaft.strategies import CheckpointError, choose_device, objects_left_out, read_checkpoint, write_checkpoint
from camshaft.trainer import Trainer
from camshaft.trainer.hyperparameters import HYPER_PARAMETERS_KEY, hyperparameters_for_checkpoints
from camshaft.trainer.load_from_checkpoint import built
from camshaft.trainer.running import VerbCall

if TYPE_CHECKING:
    from camshaft.hooks_core.protocols import TrainerProtocol


FORMAT = "camshaft step capture 2"
"""The format that a capture names in itself."""

_NAME = re.compile(r"step-(\d+)-rank-(\d+)\.capture")


class CaptureError(ValueError):
    """A capture that cannot be read, or that the step cannot be made again from."""


@attrs.frozen(eq=False)
class CapturedCall:
    """A call of `training_step`.

    Attributes:
        batch_idx: Zero-based index of the batch in the epoch.
        random_state: The states of Python's, NumPy's, torch's and the devices' generators just before it.
        batch: The batch.
        arguments: Further positional arguments.
        keywords: What it got by name.
        loss: The loss that it returned, on the CPU; None if it returned none.
        has_returned: Whether it had returned when the capture was written.
    """

    batch_idx: int
    random_state: dict[str, Any]
    batch: Any = None  # these three are left out of a capture if they hold objects that were not unpickled
    arguments: tuple[Any, ...] = ()
    keywords: dict[str, Any] = attrs.field(factory=dict)
    loss: Tensor | None = None
    has_returned: bool = False


@attrs.frozen(eq=False)
class CapturedStep:
    """The state and batches that an update was computed from, on one process.

    Attributes:
        reason: The error or warning that it was kept for.
        step: Number of the update, from 1 on.
        epoch: Zero-based epoch.
        rank: Rank of the process.
        world_size: Number of processes.
        versions: Versions of Python, torch and camshaft's packages.
        settings: Device, precision, and switches on which bits depend.
        module: Class of the module, to be told; nothing is imported by it.
        parameters: The parameters by name, before the update.
        requires_grad: The parameters that require gradients.
        gradients: Gradients that were there already, by parameter.
        buffers: The buffers by name, before the first call.
        modes: The submodules by name, with true for those in training mode.
        optimizers: The optimizers' states before the update.
        strategy: The strategy's state, such as the scale of losses.
        calls: The calls of `training_step` for the update: several with gradient accumulation, and with several
            optimizers that take turns.
        facts: What a checkpoint says of the module's hyperparameters, and of objects that were not unpickled.
    """

    reason: str
    step: int
    epoch: int
    rank: int
    world_size: int
    versions: dict[str, str]
    settings: dict[str, Any]
    module: str
    parameters: dict[str, Tensor]
    requires_grad: list[str]
    gradients: dict[str, Tensor]
    buffers: dict[str, Tensor]
    modes: dict[str, bool]
    optimizers: list[dict[str, Any]]
    strategy: dict[str, Any]
    calls: list[CapturedCall]
    facts: dict[str, Any]

    @property
    def has_non_finite_loss(self) -> bool:
        """True if a loss of this process was NaN or infinite."""
        return any(map(is_non_finite, self.calls))

    @property
    def left_out(self) -> list[str]:
        """Types of the objects that were not unpickled, hyperparameters aside."""
        return [kind for keys, kind in objects_left_out(self.facts).items() if keys[0] != HYPER_PARAMETERS_KEY]


def is_non_finite(call: CapturedCall) -> bool:
    """Return whether the loss of a call was NaN or infinite."""
    return call.loss is not None and not bool(call.loss.isfinite().all())


class StepCapture:
    """Keeps what it takes to make bad updates again, for `NonFiniteGuard` and `SpikeDetection`; see `replay_capture`.

    It notes the state from which the update that is under way began, and writes it when the guard asks it to. Before
    each call of `training_step` the batch is copied, and the states of generators are; before the first of an update,
    the buffers are. With one optimizer under automatic optimization, weights and the optimizer's state are read when a
    capture is written, before the update. Otherwise a batch may make several updates: weights and the optimizers'
    states are copied before each batch. After the last capture nothing is noted any more.

    Args:
        folder: Folder of the captures, or its URL; made as needed.
        max_captures: Largest number of captures of each process.

    Attributes:
        num_captured: Number of captures so far.

    Raises:
        InvalidArgumentError: If `folder` cannot be written to, or `max_captures` is no positive int.
    """

    def __init__(self, folder: str | os.PathLike[str], max_captures: int = 1) -> None:
        self._where = type(self).__name__
        check_number(self._where, "Pass 1 to keep the first.", least=1, max_captures=max_captures)
        self.folder = absolute(usable_path("folder", folder, self._where))
        self.max_captures = max_captures
        self.num_captured = 0
        self._module: Any = None  # while it trains
        self._trainer: Any = None
        self._is_by_batch = False  # a state is copied before each batch
        self._batch_idx = 0
        self._calls: list[CapturedCall] = []
        self._state: dict[str, Any] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Leave what belongs to a run out of copies and pickles."""
        return {**vars(self), "_module": None, "_trainer": None, "_calls": [], "_state": {}}

    def start(self, trainer: TrainerProtocol, module: Any) -> bool:
        """Begin, unless the trainer replays a run, which writes nothing.

        Args:
            trainer: The trainer, after `configure_optimizers`.
            module: The module.

        Returns:
            Whether updates have to be checked before they are made; else after each batch.

        Raises:
            InvalidArgumentError: With logical ranks; if the optimizer evaluates the loss itself; if several under
                automatic optimization accumulate gradients or take turns by `frequency`; if `training_step` takes
                `hiddens`, the state between parts of batches that are split along time; if parameters are sharded.
        """
        self.stop()
        is_automatic = getattr(module, "automatic_optimization", True)
        optimization = getattr(getattr(trainer, "fit_loop", None), "optimization", None)
        takes_turns = trainer.accumulate_grad_batches != 1 or bool(getattr(optimization, "frequencies", None))
        self._is_by_batch = not is_automatic or len(trainer.optimizers) != 1
        sharded = next((name for name, one in module.named_parameters() if hasattr(one, "device_mesh")), None)
        problem = None
        if is_automatic and any(map(needs_closure, trainer.optimizers)):
            problem = "with an optimizer that evaluates the loss itself"
        elif getattr(trainer.strategy, "num_logical_ranks", None) is not None:
            problem = "with logical ranks, of which an update has a step each"
        elif is_automatic and self._is_by_batch and takes_turns:
            problem = "with several optimizers that accumulate gradients, or take turns by `frequency`"
        elif "hiddens" in signature(module.training_step).parameters:
            problem = "for a `training_step` that takes `hiddens`: it keeps whole batches, not parts along time"
        elif sharded is not None:
            problem = f"with sharded parameters ({sharded}, ...), of which a process has only a part"
        if problem is not None:
            raise InvalidArgumentError("capture", f"None {problem}", self.folder, self._where, "Leave `capture` out.")
        if not getattr(trainer, "is_replaying", False):
            self._trainer, self._module = trainer, module
        return not self._is_by_batch

    def stop(self) -> None:
        """Note nothing any more."""
        self._trainer = self._module = None
        self._calls, self._state = [], {}

    def begin_batch(self, batch_idx: int) -> None:
        """Note the index of the batch that begins."""
        self._batch_idx = batch_idx
        if self._is_by_batch:
            self._calls = []

    def end_update(self) -> None:
        """Forget what was noted: what follows belongs to another update."""
        if not self._is_by_batch:  # else a batch may make several
            self._calls = []

    def wrap_call(
        self, hook: str, kind: Receiver, receiver: object, function: Callable[..., Any]
    ) -> Callable[..., Any]:
        """Return a function that notes each call of `training_step`; of another hook, its own.

        Args:
            hook: The name of the hook.
            kind: The kind of the receiver.
            receiver: The receiver.
            function: What is called.
        """
        return partial(self._noted, function) if hook == "training_step" else function

    def _noted(self, function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        if self._module is None or self.num_captured >= self.max_captures:
            return function(*arguments, **keywords)
        call = self._note(arguments, keywords)
        outputs = function(*arguments, **keywords)
        if self._calls:  # else it was written meanwhile
            loss = loss_in(outputs)
            self._calls[-1] = attrs.evolve(call, loss=None if loss is None else loss.clone(), has_returned=True)
        return outputs

    def _note(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> CapturedCall:
        if not self._is_by_batch and all(call.loss is None for call in self._calls):  # there are no gradients yet
            self._calls = []
        if not self._calls:
            with torch.no_grad():
                buffers = {name: buffer.clone() for name, buffer in self._module.named_buffers()}
            self._state = {**(copy.deepcopy(self._read_state()) if self._is_by_batch else {}), "buffers": buffers}
        try:
            copied = copy.deepcopy((arguments, keywords))
        except Exception as error:
            rule, action = "one that can be copied, for `capture`", "Leave `capture` out, or give it `__deepcopy__`."
            raise TypeError(must_be("batch", rule, arguments[0], self._where, action)) from error
        (batch, *others), named = copied
        self._calls.append(CapturedCall(self._batch_idx, random_state(), batch, tuple(others), named))
        return self._calls[-1]

    def write(self, trainer: TrainerProtocol, reason: str) -> None:
        """Write a capture of the update that is under way, unless there are enough; warn if that fails.

        Args:
            trainer: The trainer.
            reason: What happened.
        """
        if not self._calls or self.num_captured >= self.max_captures:
            return
        self.num_captured += 1
        state = self._state if self._is_by_batch else {**self._read_state(), **self._state}
        rank = int(getattr(trainer.strategy, "global_rank", 0))
        path = join(self.folder, f"step-{state['step']}-rank-{rank}.capture")
        module = self._module
        try:
            capture = CapturedStep(
                reason=reason,
                epoch=trainer.current_epoch,
                rank=rank,
                world_size=trainer.strategy.world_size,
                versions=versions(),
                settings={
                    "device": trainer.strategy.device.type,
                    "device_name": name_of_device(trainer.strategy.device),
                    "precision": getattr(trainer, "precision", None),
                    **determinism(),
                    "is_compiled": any(part._compiled_call_impl is not None for part in module.modules()),
                },
                module=f"{type(module).__module__}:{type(module).__qualname__}",
                calls=self._calls,
                facts=hyperparameters_for_checkpoints(module),
                **state,
            )
            contents = {"format": FORMAT, **attrs.asdict(capture, recurse=False), **capture.facts}
            contents["calls"] = [attrs.asdict(call, recurse=False) for call in capture.calls]
            write_checkpoint({name: value for name, value in contents.items() if name != "facts"}, path)
        except Exception as error:  # what happened in training is not to be hidden by this
            problem = f"{type(error).__name__}: {error}".rstrip(".")
            action = "Name a folder with room for it."
            warn_user(f"{self._where} could not write the capture {path}: {problem}. {action}", of_rank=True)
        self._calls, self._state = [], {}

    def _read_state(self) -> dict[str, Any]:
        """Return the state before the update, but for the buffers; tensors are those of module and optimizers."""
        trainer, module = self._trainer, self._module
        parameters: dict[str, nn.Parameter] = dict(module.named_parameters())
        gradients = {name: one.grad for name, one in parameters.items() if self._is_by_batch and one.grad is not None}
        return {
            "step": trainer.global_step + 1,
            "parameters": {name: one.detach() for name, one in parameters.items()},
            "requires_grad": [name for name, one in parameters.items() if one.requires_grad],
            "gradients": gradients,
            "modes": {name: part.training for name, part in module.named_modules()},
            "optimizers": [one.state_dict() for one in trainer.optimizers],
            "strategy": trainer.strategy.state_dict(),
        }


def captures_in(folder: str | os.PathLike[str]) -> dict[tuple[int, int], str]:
    """Return the paths of the captures in a folder, or at its URL, by step and rank, in this order.

    Raises:
        FileNotFoundError: If there is no such folder, or it holds no capture.
    """
    path = absolute(folder)
    matches = [match for name in entries_of(path) if (match := _NAME.fullmatch(name))]
    found = {(int(match[1]), int(match[2])): join(path, match[0]) for match in matches}
    if not found:
        rule, action = "a folder with captures of steps", "Pass the folder that a callback got as `capture`."
        raise FileNotFoundError(must_be("folder", rule, path, "captures_in", action))
    return dict(sorted(found.items()))


def read_capture(path: str, weights_only: bool | None = None) -> CapturedStep:
    """Read a capture; its tensors come to the CPU.

    Args:
        path: The file, or its URL.
        weights_only: False unpickles the objects in it, such as batches of classes of one's own, which can run any
            code: only for files from a source that you trust. Otherwise they are left out.

    Raises:
        FileNotFoundError: If there is no such file.
        CaptureError: If the file is no capture, or damaged.
    """
    try:
        contents = read_checkpoint(path, weights_only=weights_only)
        found = contents.pop("format", None)
        if found != FORMAT:
            raise CaptureError(must_be("path", f"a file of {FORMAT!r}", found, path, "Pass another file."))
        fields = {one.name: contents.pop(one.name) for one in attrs.fields(CapturedStep) if one.name in contents}
        fields["calls"] = [CapturedCall(**call) for call in fields["calls"]]
        return CapturedStep(**fields, facts=contents)
    except (CheckpointError, KeyError, TypeError) as error:
        action = "Pass another one: this is damaged, or no capture."
        raise CaptureError(must_be("path", "a whole capture of a step", path, "read_capture", action)) from error


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
    """Return the path of a capture and what it holds; the arguments are those of `replay_capture`.

    Raises:
        FileNotFoundError: If there is no such capture.
    """
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

    Args:
        module: The module; it keeps the weights of the capture.
        debug: Whether a debugger opens at the first tensor that is not finite.

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
        accelerator=_accelerator_for(capture),
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
    problems = [f"it has no {kind} {name}" for name in expected if name not in found]
    problems += [f"it has a further {kind}, {name}" for name in found if name not in expected]
    if kind == "parameter" and not problems:
        problems = [
            f"its parameter {name} has the shape {tuple(one.shape)}, not {tuple(expected[name].shape)}"
            for name, one in found.items()
            if one.shape != expected[name].shape
        ]
    if problems:
        raise _does_not_fit(capture, problems[0])


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


def _accelerator_for(capture: CapturedStep) -> str:
    return "cpu" if capture.settings["device"] == "cpu" else "auto"


def circumstances(capture: CapturedStep) -> list[str]:
    """Return what is not as it was captured, on which the bits of results may depend; empty if nothing is known."""
    device = name_of_device(choose_device(_accelerator_for(capture)))
    now = {**versions(), "device": device}
    was = {**capture.versions, "device": capture.settings["device_name"]}
    found = [f"{name} {now.get(name)} (was {former})" for name, former in was.items() if now.get(name) != former]
    return [*found, *(["submodules were compiled"] if capture.settings["is_compiled"] else [])]
