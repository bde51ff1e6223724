"""The base class of users' modules: steps, logging, the trainer, optimization, checkpoints, export."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from camshaft.hooks_core import CheckpointHooks, DataHooks, ModelHooks
from camshaft.hooks_core.support.messages import must_be
from camshaft.loops.metrics import MetricLogging, not_compiled
from camshaft.loops.optimization.update import LossError, check_loss
from camshaft.trainer.checkpoints import CheckpointFormat
from camshaft.trainer.export import names_not_exported, to_onnx, to_torchscript
from camshaft.trainer.forwarding import class_only, forwarded
from camshaft.trainer.hyperparameters import HyperparametersMixin

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from camshaft.trainer.trainer import Trainer


_NOT_COPIED = ("_trainer", "_metric_log", "_compiled_call_impl")
"""Attributes that copies and pickles leave behind: those of a run, and `nn.Module`'s own compiled call."""


class TrainingModule(MetricLogging, HyperparametersMixin, ModelHooks, DataHooks, CheckpointHooks, nn.Module):
    """A model with its steps; subclass it as you would `nn.Module`.

    Define `training_step` and `configure_optimizers` to fit, `validation_step`, `test_step` for these verbs, and
    `predict_step` or `forward` to predict. Every hook that a module receives may be overridden.

    It needs no trainer: a test can call a step and look at what it logged.

    Attributes:
        automatic_optimization: If true, the trainer differentiates and steps; if false, `training_step` does.
        truncated_bptt_steps: Time steps of the splits of a batch, for truncated backpropagation through time: each
            split is a step of its own, whose `training_step(batch, batch_idx, hiddens)` returns the hidden state for
            the next one as "hiddens", beside the loss. None or 0 leaves batches whole.
        example_input_array: Example input of `forward`, for summaries and export.
        checkpoint_formats: Formats of others that `load_from_checkpoint` reads, beside ours.

    Example:
        >>> class Doubling(TrainingModule):
        ...     def validation_step(self, batch, batch_idx):
        ...         self.log("error", (2 * batch - 3).abs().mean())
        >>> module = Doubling()
        >>> module.validation_step(torch.tensor([1.0, 2.0]), batch_idx=0)
        >>> module.logged_metrics
        {'error': tensor(1.)}
    """

    __hook_base__: ClassVar[bool] = True

    __jit_unused_properties__: ClassVar[list[str]]
    __jit_ignored_attributes__: ClassVar[list[str]]

    automatic_optimization: bool = True
    truncated_bptt_steps: int | None = None
    example_input_array: Any = None
    checkpoint_formats: ClassVar[tuple[CheckpointFormat, ...]] = ()

    # Set on an instance by its first run, in `__dict__`: past `nn.Module.__setattr__`, which would look for submodules.
    _trainer: Trainer | None = None

    # steps and configuration, for users to define; not implemented here, so that set-up reports missing ones

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the loss of a training batch: `training_step(batch, batch_idx)`.

        Returns:
            The loss, a scalar tensor; or a dictionary with it as "loss"; or a `WeightedLoss`; or None to skip the
            batch. Under manual optimization, anything.
        """
        raise NotImplementedError(self._missing("training_step", "(batch, batch_idx)"))

    def validation_step(self, *args: Any, **kwargs: Any) -> Any:
        """Evaluate a validation batch: `validation_step(batch, batch_idx)`, and `dataloader_idx` if wanted.

        Runs without gradients, in evaluation mode.

        Returns:
            Anything; `on_validation_batch_end` gets it.
        """
        raise NotImplementedError(self._missing("validation_step", "(batch, batch_idx)"))

    def test_step(self, *args: Any, **kwargs: Any) -> Any:
        """Evaluate a test batch, as `validation_step` does a validation batch."""
        raise NotImplementedError(self._missing("test_step", "(batch, batch_idx)"))

    def predict_step(self, *args: Any, **kwargs: Any) -> Any:
        """Predict a batch: `predict_step(batch, batch_idx)`, and `dataloader_idx` if wanted.

        The default calls the module with the batch, and counts as not implemented: without `forward`, prediction is an
        error at set-up.

        Returns:
            A prediction, which `Trainer.predict` collects.
        """
        return self(kwargs["batch"] if "batch" in kwargs else args[0])

    def configure_optimizers(self) -> Any:
        """Return the optimizers; called once per fit.

        Returns:
            An optimizer; a list of them; two lists, of optimizers and schedulers; a dictionary with "optimizer", and
            perhaps "lr_scheduler" and "monitor", the value for a scheduler on plateaus; or None to train nothing.
        """
        raise NotImplementedError(self._missing("configure_optimizers", "()"))

    def configure_callbacks(self) -> Any:
        """Return callbacks of the module; each replaces one of its type that the trainer has."""
        return []

    # the trainer

    @property
    def trainer(self) -> Trainer:
        """The trainer of the current or last verb.

        Another one, or None, may be assigned, to the modules in this one as well; deleting it assigns None.

        Raises:
            RuntimeError: If no trainer has run with this module.
        """
        if self._trainer is None:
            action = "Pass the module to a verb of a trainer first."
            raise RuntimeError(must_be("trainer", "attached", None, type(self).__qualname__, action))
        return self._trainer

    @trainer.setter
    def trainer(self, trainer: Any) -> None:
        for part in self.modules() if "_modules" in self.__dict__ else [self]:  # else `__init__` of `nn.Module` follows
            if isinstance(part, TrainingModule):
                part.__dict__["_trainer"] = trainer

    @trainer.deleter
    def trainer(self) -> None:
        self.trainer = None

    current_epoch: int = forwarded("_trainer.current_epoch", "Index of the epoch; 0 without a trainer.", default=0)
    global_step: int = forwarded("_trainer.global_step", "Optimizer updates so far; 0 without a trainer.", default=0)
    global_rank: int = forwarded("_trainer.global_rank", "Index of this process; 0 without a trainer.", default=0)
    local_rank: int = forwarded(
        "_trainer.local_rank", "Index of this process on its machine; 0 without one.", default=0
    )
    logger: Any = forwarded("_trainer.logger", "The trainer's first logger; None without any.", default=None)

    @property
    def loggers(self) -> list[Any]:
        """The trainer's loggers; empty without a trainer."""
        return [] if self._trainer is None else self._trainer.loggers

    @property
    def device(self) -> torch.device:
        """Device of the first parameter or buffer; of the trainer's strategy if there is none, else the CPU."""
        for tensors in (self.parameters(), self.buffers()):
            for tensor in tensors:
                return tensor.device
        return torch.device("cpu") if self._trainer is None else torch.device(self._trainer.strategy.device)

    @property
    def dtype(self) -> torch.dtype:
        """Type of the first parameter or buffer of floating point; torch's default type if there is none."""
        for tensors in (self.parameters(), self.buffers()):
            for tensor in tensors:
                if tensor.is_floating_point():
                    return tensor.dtype
        return torch.get_default_dtype()

    @property
    def device_mesh(self) -> DeviceMesh | None:
        """Device mesh of a sharded strategy, for `configure_sharded_model`.

        None for any other strategy and without a trainer, as when a module is built from a checkpoint: leave submodules
        whole then.
        """
        mesh: DeviceMesh | None = getattr(getattr(self._trainer, "strategy", None), "device_mesh", None)
        return mesh

    def optimizers(self, use_pl_optimizer: bool = True) -> Optimizer | list[Optimizer]:
        """Return the optimizer of the fit; a list if `configure_optimizers` returned several or none.

        Args:
            use_pl_optimizer: Has no effect: there is no wrapper, and `step` may be called on the returned optimizer.
        """
        optimizers: list[Optimizer] = list(self.trainer.optimizers)
        return optimizers[0] if len(optimizers) == 1 else optimizers

    def lr_schedulers(self) -> Any:
        """Return the learning-rate scheduler of the fit; a list if there are several, None if there is none."""
        schedulers = [config.scheduler for config in self.trainer.lr_scheduler_configs]
        if not schedulers:
            return None
        return schedulers[0] if len(schedulers) == 1 else schedulers

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Print on the first process only, by the trainer's progress bar if it shows one; arguments as Python's."""
        if self.global_rank == 0:
            (print if self._trainer is None else self._trainer.print)(*args, **kwargs)

    def all_gather(self, data: Any, group: Any = None, sync_grads: bool = False) -> Any:
        """Gather the tensors of all processes. Collective.

        Args:
            data: A tensor, or a collection of tensors and numbers, of the same shapes in every process. Numbers and
                NumPy's arrays become tensors on the module's device.
            group: Process group of torch; None means all processes.
            sync_grads: If true, gradients flow through it, and are summed over the processes.

        Returns:
            The data, each tensor of shape `(processes, *shape)`; as it is on a strategy of a single device.

        Raises:
            RuntimeError: Without a trainer, or in what comes for each logical rank, of which a process has several.
        """
        from camshaft.trainer.gathering import all_gather  # rarely needed

        rank = getattr(self.trainer, "logical_rank", None)
        if rank is not None:
            rule, got = "called once for all logical ranks", f"a call for rank {rank}"
            action = "Call it in a hook that comes once, such as `on_train_epoch_end`, or leave `logical_ranks` out."
            raise RuntimeError(must_be("all_gather", rule, got, type(self).__qualname__, action))

        return all_gather(data, self.device, self.trainer.strategy, group, sync_grads)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without trainer, log and compiled code, for copies and pickles."""
        return {name: value for name, value in self.__dict__.items() if name not in _NOT_COPIED}

    # optimization

    @not_compiled
    def manual_backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        """Differentiate a loss under manual optimization, in place of `loss.backward()`. Collective.

        Hooks: on_before_backward, backward, on_after_backward.

        Args:
            loss: A scalar.
            args, kwargs: Arguments of `loss.backward`.

        Raises:
            RuntimeError: Under automatic optimization, or without a trainer.
            LossError: If the loss has no graph, or several elements and `loss.backward` gets no gradient of them.
            TypeError: If the loss is no tensor, or `loss.backward` is to get arguments, but `backward` is overridden.
        """
        trainer = self.trainer
        if self.automatic_optimization:
            action = "Set it in `__init__`, or return the loss from `training_step`."
            where = f"{type(self).__qualname__}.manual_backward"
            raise RuntimeError(must_be("automatic_optimization", "False", True, where, action))
        hooks = trainer.hooks
        backward = hooks.backward
        if args or kwargs:
            backward = _backward_with(self, args, kwargs, backward)
        hooks.on_before_backward(loss)
        try:
            trainer.strategy.backward(loss, backward)
        except (AttributeError, RuntimeError, TypeError) as error:
            _explain_manual(loss, self, error)
            raise
        hooks.on_after_backward()

    def toggle_optimizer(self, optimizer: Optimizer) -> None:
        """Make only the parameters of one of the fit's optimizers require gradients.

        So the graph of its loss is not built where no gradient is wanted, as with the generator and the discriminator
        of a GAN. Parameters that it shares with others, and those of no optimizer, stay as they are. Per-optimizer
        automatic optimization does it by itself, and calls no override of this; manual optimization ends it with
        `untoggle_optimizer`, at the latest the fit does.

        Args:
            optimizer: One of the fit's optimizers; if another one was at work, its turn is over.

        Raises:
            ValueError: If it is none of them.
            RuntimeError: Without a trainer.
        """
        optimization = self.trainer.fit_loop.optimization
        if not any(optimizer is known for known in optimization.optimizers):
            where = f"{type(self).__qualname__}.toggle_optimizer"
            action = "Pass one of `self.optimizers()`."
            raise ValueError(must_be("optimizer", "one of the fit's optimizers", optimizer, where, action))
        optimization.toggle.toggle(optimizer)

    def untoggle_optimizer(self, optimizer: Optimizer | None = None) -> None:
        """Make all parameters require gradients again that did before `toggle_optimizer`.

        Args:
            optimizer: The one that is at work; None means whichever it is.

        Raises:
            ValueError: If another one is at work.
            RuntimeError: Without a trainer.
        """
        optimization = self.trainer.fit_loop.optimization
        toggle = optimization.toggle
        if optimizer is not None and toggle.active is not None and toggle.active is not optimizer:
            where = f"{type(self).__qualname__}.untoggle_optimizer"
            action = "Pass the same one as to `toggle_optimizer`."
            raise ValueError(must_be("optimizer", "the one that was toggled", optimizer, where, action))
        toggle.untoggle()

    @contextmanager
    def toggled_optimizer(self, optimizer: Optimizer) -> Iterator[None]:
        """Toggle an optimizer in a `with` statement; see `toggle_optimizer`."""
        self.toggle_optimizer(optimizer)
        try:
            yield
        finally:
            self.untoggle_optimizer(optimizer)

    def clip_gradients(
        self, optimizer: Any, gradient_clip_val: float | None = None, gradient_clip_algorithm: str | None = None
    ) -> None:
        """Clip the gradients of one optimizer, across processes where they are sharded. Collective. No hook.

        Args:
            gradient_clip_val: The largest norm or absolute value; None clips nothing.
            gradient_clip_algorithm: "norm" (None means the same) or "value".

        Raises:
            ValueError: If the algorithm is neither.
        """
        if self._trainer is None:
            super().clip_gradients(optimizer, gradient_clip_val, gradient_clip_algorithm)
        elif gradient_clip_val is not None:
            self._trainer.strategy.clip_gradients(optimizer, gradient_clip_val, gradient_clip_algorithm or "norm")

    # weights

    @property
    def strict_loading(self) -> bool:
        """True if the weights of a checkpoint must fit the module exactly; so it is unless false is assigned.

        It holds for every verb with a `ckpt_path`, and for `load_from_checkpoint`.
        """
        return self.__dict__.get("_strict_loading") in (None, True)

    @strict_loading.setter
    def strict_loading(self, value: bool) -> None:
        self.__dict__["_strict_loading"] = value

    def freeze(self) -> Self:
        """Stop training every parameter, and switch to evaluation mode. Returns the module."""
        return self.requires_grad_(False).eval()

    def unfreeze(self) -> Self:
        """Train every parameter, and switch to training mode. Returns the module."""
        return self.requires_grad_(True).train()

    @class_only
    def load_from_checkpoint(
        cls,
        checkpoint_path: str | os.PathLike[str] | IO[bytes],
        map_location: Any = None,
        hparams_file: str | os.PathLike[str] | None = None,
        strict: bool | None = None,
        weights_only: bool | None = None,
        **kwargs: Any,
    ) -> Self:
        """Build a module from a checkpoint: with the hyperparameters and the weights that are saved in it.

        Hooks: configure_sharded_model, configure_model, on_load_checkpoint, of the new module.

        Args:
            checkpoint_path: The checkpoint: a file, or the directory of one whose state was sharded; or a binary file
                object, or an address that begins with http:// or https://.
            map_location: Device of the tensors and of the module, or another mapping that `torch.load` takes; None
                means the CPU.
            hparams_file: A file in YAML or CSV whose values take the place of the hyperparameters.
            strict: If true, the weights must fit the module exactly; None takes the module's `strict_loading`.
            weights_only: False unpickles the objects in the file, which may run any code: pass it for files that you
                trust. Otherwise they are left out, and arguments among them have to be passed.
            kwargs: Arguments of `__init__`, before those that were saved. One that `__init__` does not take is left
                out, with a warning, unless one argument holds all hyperparameters: then it is a value in this one.

        Returns:
            The module.

        Raises:
            FileNotFoundError: If there is no such checkpoint.
            CheckpointError: If it cannot be read.
            ValueError: If there are no weights in it, or `strict` contradicts the `strict_loading` that `__init__` set.
            TypeError: If `__init__` takes other arguments; or takes some that the checkpoint keeps as objects, and that
                are not passed.
            RuntimeError: If the weights do not fit.
        """
        from camshaft.trainer.load_from_checkpoint import rebuild  # rarely needed

        built: Self = rebuild(cls, checkpoint_path, map_location, strict, weights_only, hparams_file, kwargs)
        return built

    # export

    def to_torchscript(
        self,
        file_path: str | os.PathLike[str] | None = None,
        method: str = "script",
        example_inputs: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Return `forward` as TorchScript, in evaluation mode.

        Args:
            file_path: File to save it to; None saves nothing.
            method: "script" compiles the code, "trace" records a call.
            example_inputs: Inputs of the call; None takes `example_input_array`.
            kwargs: Further arguments of `torch.jit.script` or `torch.jit.trace`.

        Returns:
            The `torch.jit.ScriptModule`.

        Raises:
            ValueError: If the method is unknown, or there is nothing to trace with.
        """
        return to_torchscript(self, file_path, method, example_inputs, kwargs)

    def to_onnx(self, file_path: str | os.PathLike[str], input_sample: Any = None, **kwargs: Any) -> None:
        """Save `forward` in the ONNX format, in evaluation mode.

        Args:
            file_path: File to save it to.
            input_sample: Inputs of a call: one argument, or a tuple of them; None takes `example_input_array`.
            kwargs: Further arguments of `torch.onnx.export`, which says what has to be installed.

        Raises:
            ValueError: If there is nothing to call it with.
        """
        to_onnx(self, file_path, input_sample, kwargs)

    def _missing(self, method: str, parameters: str) -> str:
        return f"`{method}` is not implemented in {type(self).__qualname__}. Define `{method}{parameters}`."


# TorchScript would compile or read them
TrainingModule.__jit_unused_properties__ = TrainingModule.__jit_ignored_attributes__ = names_not_exported(
    TrainingModule
)


def _backward_with(
    module: object, args: Sequence[Any], kwargs: Mapping[str, Any], override: Callable[..., Any] | None
) -> Callable[..., Any] | None:
    """Return the function that differentiates a loss that `manual_backward` got with further arguments.

    Args:
        args: These arguments.
        kwargs: Those that were passed by name.
        override: The module's own `backward`, if it has one.

    Raises:
        TypeError: If any are left for an override.
    """
    if override is not None:
        raise TypeError(
            f"`manual_backward` of {type(module).__qualname__}, which overrides `backward`, cannot pass "
            f"{kwargs or args} to `loss.backward`. Call that with them in `backward` itself."
        )

    def backward(loss: Tensor) -> None:
        loss.backward(*args, **kwargs)  # type: ignore[no-untyped-call]

    return backward


def _explain_manual(loss: Any, module: object, error: Exception) -> None:
    """Raise a `LossError`, or a `TypeError`, for an error of `manual_backward` that the loss caused."""
    where = type(module).__qualname__
    if not isinstance(loss, Tensor):
        action = 'Pass the tensor: of a WeightedLoss its ["loss"], scaled by hand.'
        raise TypeError(must_be("loss", "a tensor", loss, f"{where}.manual_backward", action)) from error
    try:
        check_loss(loss, "`manual_backward` must be called in `training_step` with", where)
    except LossError as of_loss:
        raise of_loss from error
