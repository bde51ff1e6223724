"""The base of strategies with the arguments, attributes and methods of Lightning's, to be used or subclassed.

An object takes its devices and its precision from the trainer, unless it was made with some. Methods that a subclass
overrides are called where the strategies of `camshaft.strategies` do the same; of others the trainer warns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from camshaft.compat.names.plugins.accelerators import find_accelerator
from camshaft.compat.names.plugins.checkpoint_io import CheckpointIO, TorchCheckpointIO
from camshaft.compat.names.plugins.environments import RECOGNISED, ClusterEnvironment
from camshaft.compat.names.plugins.overrides import (
    OF_STRATEGIES,
    STEPS,
    Done,
    accepted,
    check_same,
    function_or_none,
    is_overridden,
    translate_overrides,
)
from camshaft.compat.names.plugins.precision import view_of
from camshaft.compat.names.stand_ins import StandIn, settable
from camshaft.compat.names.table import uncalled
from camshaft.hooks_core.protocols import PendingSave
from camshaft.hooks_core.support.messages import must_be, warn_user
from camshaft.strategies import ObjectsInPlace, TorchStrategy, choose_device
from camshaft.strategies import SingleDeviceStrategy as _SingleDeviceStrategy
from camshaft.strategies.precision import Precision

_ELSEWHERE = "Do it in a method that is called, or in a callback."
_RANKS = frozenset({"device", "global_rank", "local_rank", "world_size", "num_nodes"})


def _module_step(name: str) -> Callable[..., Any]:
    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Run the module's step."""
        return self._inner_steps[name](*args, **kwargs)

    return step


class Strategy(TorchStrategy, metaclass=StandIn):
    """The base class of strategies under the import names.

    Args:
        accelerator: The kind of device, by name or as an object; None is the trainer's.
        checkpoint_io: What writes and reads checkpoints in place of the strategy.
        precision_plugin: The precision; None is the trainer's.
    """

    __stands_for__: ClassVar[type] = TorchStrategy
    __hook_base__: ClassVar[bool] = True
    never_called: ClassVar[Iterable[str]] = uncalled()["plugins.Strategy"]
    of_trainer: ClassVar[Sequence[str]] = ("device", "precision")

    launcher: Any = None  # what starts processes there; here a script is started for each
    trainer: Any = None  # that of the current or last verb
    strategy_name: Any = None
    handles_gradient_accumulation: Any = False
    lightning_restore_optimizer: Any = True
    restore_checkpoint_after_setup: Any = False
    cluster_environment: ClusterEnvironment | None = None
    _lightning_module: Any = None
    _model: Any = None
    _given: Sequence[Optimizer] | None = None  # while an override of `setup_optimizers` runs
    _set_up: Sequence[Optimizer] = ()
    _differentiate: Callable[[Tensor], Any] | None = None  # while an override of `backward` runs
    _transfer: Callable[..., Any] | None = None
    loss: Tensor | None = None  # the latest, for overrides of `optimizer_step`
    _keeps_loss = False
    _computing: nn.Module | None = None
    _layer_sync: Any = None  # batch norms are synchronised where the module is wrapped
    _is_attached = False
    _has_warned = False

    def __init__(self, accelerator: Any = None, checkpoint_io: Any = None, precision_plugin: Any = None) -> None:
        self._accelerator, self._checkpoint_io, self._precision_plugin = accelerator, checkpoint_io, precision_plugin
        self._inner_steps: dict[str, Callable[..., Any]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        translate_overrides(cls, OF_STRATEGIES)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute, unless it is a rank or the device, and a subclass has a property for it."""
        if name not in _RANKS or not isinstance(getattr(type(self), name, None), property):
            super().__setattr__(name, value)

    def attach(self, of_trainer: Mapping[str, Any]) -> None:
        """Choose devices and precision: those that it was made with, else the trainer's.

        Args:
            of_trainer: Arguments of the trainer.

        Raises:
            TypeError, ValueError: If an argument has no counterpart, or is out of range.
        """
        given = {name: of_trainer[name] for name in self.of_trainer if of_trainer.get(name)}
        own = {name: value for name, value in self.native_arguments().items() if value is not None}
        super().__init__(**{**given, **own})
        self.complete()

    def complete(self) -> None:
        """Take what is chosen into account."""
        self._is_attached = True
        if is_overridden(self, "root_device"):
            self.device = torch.device(self.root_device)
        self._view = view_of(self.precision, self)
        self._view.strategy = self
        self._keeps_loss = is_overridden(self, "optimizer_step") or is_overridden(self._view, "optimizer_step")

    @classmethod
    def adopt(cls, strategy: Any) -> None:
        """Make a strategy that a trainer chose by a name one of this class, with the state that it has."""
        chosen = vars(strategy).copy()
        strategy.__class__ = cls
        cls.__init__(strategy)
        vars(strategy).update(chosen)
        strategy.complete()

    def native_arguments(self) -> dict[str, Any]:
        """Return the arguments of the native strategy; None where the trainer is to choose."""
        plugin = self._precision_plugin
        if plugin is not None and not isinstance(plugin, Precision):
            action = 'Pass one of `lightning.pytorch.plugins`, or `Trainer(precision="16-mixed")`.'
            raise TypeError(must_be("precision_plugin", "a precision", plugin, type(self).__name__, action))
        found: dict[str, Any] = {"precision": plugin}
        if "device" in self.of_trainer:
            found["device"] = self.root_device if is_overridden(self, "root_device") else choose_device()
        return found

    # what libraries read and set

    @settable
    def accelerator(self) -> Any:
        """The kind of device, an `Accelerator`."""
        if self._accelerator is None or isinstance(self._accelerator, str):
            return find_accelerator(self._accelerator or self.device.type)
        return self._accelerator

    @settable
    def checkpoint_io(self) -> CheckpointIO:
        """The plugin that writes and reads checkpoints, in place of the strategy if it was given."""
        io: CheckpointIO = self._checkpoint_io or TorchCheckpointIO()
        return io

    @settable
    def precision_plugin(self) -> Any:
        """The precision; None while neither the strategy nor a trainer has chosen it."""
        return self._view if self._is_attached else self._precision_plugin

    @property
    def lightning_module(self) -> Any:
        """The module of the current or last verb; None before the first."""
        if self._lightning_module is not None:
            return self._lightning_module
        return None if self.trainer is None else self.trainer.model

    @settable
    def model(self) -> Any:
        """The module, or what wraps its steps while there is such a thing."""
        return self.lightning_module if self._model is None else self._model

    @property
    def optimizers(self) -> Any:
        """The optimizers of the fit."""
        if self._given is None:
            return [] if self.trainer is None else self.trainer.optimizers
        return self._set_up or self._given

    @optimizers.setter
    def optimizers(self, optimizers: Sequence[Any]) -> None:
        if self._given is not None:
            self._set_up = list(optimizers)
        elif self.trainer is None:
            action = "Return them from `configure_optimizers`."
            raise RuntimeError(must_be("optimizers", "set while a fit runs", optimizers, type(self).__name__, action))
        else:
            self.trainer.optimizers = optimizers

    _optimizers = _lightning_optimizers = optimizers  # names there

    @property
    def lr_scheduler_configs(self) -> list[Any]:
        """The schedulers of the fit, each with its settings."""
        return [] if self.trainer is None else self.trainer.lr_scheduler_configs

    @property
    def root_device(self) -> Any:
        """The `device`."""
        return self.device

    def _configure_launcher(self) -> None:
        """Do nothing: a strategy starts processes itself."""

    def process_dataloader(self, dataloader: Any) -> Any:
        """Return a loader as it is."""
        return dataloader

    def post_training_step(self) -> None:
        """Do nothing."""

    @property
    def change_loader(self) -> Callable[[Any], Any] | None:
        """An override of `process_dataloader`, to which the loops hand each loader; None without one."""
        return self.process_dataloader if is_overridden(self, "process_dataloader") else None

    # set-up: what the native strategy calls, and under it what subclasses override

    def take_module(self, module: nn.Module) -> None:
        """Remember the module of the verb that begins."""
        self._lightning_module, self._model = module, None

    def connect(self, model: Any = None) -> None:
        """Join the processes; with a module, nothing: it is known. Collective."""
        if model is None:
            self.native_connect()

    def native_connect(self) -> None:
        """Join the processes by `setup_environment`. Collective."""
        if not self._is_attached:
            self.attach({})
        self._warn_of_overrides()
        self.setup_environment()

    def setup_environment(self) -> None:
        """Join the processes. Collective."""
        if hasattr(self._accelerator, "setup_device"):
            self._accelerator.setup_device(self.device)
        super().connect()

    def setup_module(self, module: nn.Module) -> nn.Module:
        """Set a module up by `setup`. Collective."""
        if module is not self.lightning_module:
            self.take_module(module)
        self._computing = None
        self.setup(self.trainer)
        return super().setup_module(module) if self._computing is None else self._computing

    def setup(self, trainer: Any) -> None:
        """Convert the module and move it to the device, by `model_to_device`. Collective."""
        if hasattr(self._accelerator, "setup"):
            self._accelerator.setup(trainer)
        self._computing = super().setup_module(self.lightning_module)
        self.setup_precision_plugin()

    def setup_precision_plugin(self) -> None:
        """Let a precision of one's own change the module."""
        if is_overridden(self.precision, "connect"):
            precision: Any = self.precision
            connected, *_ = precision.connect(self.model, self.optimizers, self.lr_scheduler_configs)
            check_same("connect", precision, connected, self.model)

    def place_module(self, module: nn.Module) -> None:
        """Move the module to the device by `model_to_device`."""
        self.model_to_device()

    def model_to_device(self) -> None:
        """Move the module to the device."""
        self.model.to(self.root_device)

    def setup_optimizers(self, optimizers: Any) -> list[Optimizer]:
        """Make optimizers step in this strategy's precision, and return them. Collective.

        Args:
            optimizers: The optimizers; from an override, the trainer.
        """
        if isinstance(optimizers, (list, tuple)):
            return super().setup_optimizers(optimizers)
        if self._given is not None:
            self._set_up = super().setup_optimizers(self._given)
        return list(self._set_up)

    def native_setup_optimizers(self, optimizers: Sequence[Optimizer]) -> None:
        """Make optimizers that an override of `setup_optimizers` has set step in this strategy's precision."""
        super().setup_optimizers(optimizers)

    def arguments_of_backward(self) -> tuple[Any, ...]:
        """Return what an override of `backward` gets beside the loss: the optimizer, where there is one."""
        optimizers = self.optimizers
        return (optimizers[0] if len(optimizers) == 1 else None,)

    @contextmanager
    def model_context(self, module: nn.Module) -> Iterator[None]:
        """Enter the contexts in which modules are built."""
        with ExitStack() as stack:
            stack.enter_context(super().model_context(module))
            stack.enter_context(self.tensor_init_context())
            stack.enter_context(self.model_sharded_context())
            stack.enter_context(self._view.tensor_init_context())
            stack.enter_context(self._view.module_init_context())
            yield

    def tensor_init_context(self, empty_init: bool | None = None) -> Any:
        """Return a context that does nothing: modules are moved and converted when they are set up."""
        return nullcontext()

    def model_sharded_context(self) -> Any:
        """Return a context that does nothing: a strategy that shards does so by itself."""
        return nullcontext()

    # steps

    def wrap_step(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """Return the step in this strategy's precision, called by an override of its name."""
        inner, name = super().wrap_step(step), getattr(step, "__name__", "")
        if name not in STEPS or not is_overridden(self, name):
            return inner
        self._inner_steps[name] = inner
        called: Callable[..., Any] = getattr(self, name)
        return called

    def _forward_redirection(self, model: Any, module: Any, method_name: str, *args: Any, **kwargs: Any) -> Any:
        """Run a step of the module through what wraps it."""
        return self._inner_steps[method_name](*args, **kwargs)

    training_step = _module_step("training_step")
    validation_step = _module_step("validation_step")
    test_step = _module_step("test_step")
    predict_step = _module_step("predict_step")

    def batch_to_device(self, batch: Any, device: Any = None, dataloader_idx: int = 0) -> Any:
        """Move a batch of any nesting to the device, by the module's own hook if there is one."""
        if self._transfer is not None:
            return self._transfer(batch, device or self.device, dataloader_idx)
        return super().batch_to_device(batch)

    def adapt(self, run: Any) -> None:
        """Let an override of `batch_to_device` move the batches of a run, also on the CPU, where nothing else does."""
        if is_overridden(self, "batch_to_device"):
            self._transfer = run.hooks.transfer_batch_to_device
            run.hooks.transfer_batch_to_device = self._move

    def _move(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        return self.batch_to_device(batch, dataloader_idx=dataloader_idx)

    def backward(self, closure_loss: Tensor, optimizer: Any = None, *args: Any, **kwargs: Any) -> Tensor:  # type: ignore[override]
        """Differentiate a loss, between `pre_backward` and `post_backward`. Collective if gradients are averaged.

        Args:
            closure_loss: The loss.
            optimizer: The optimizer, which is not needed; or the function that differentiates.
            args, kwargs: Arguments of `Tensor.backward`.

        Returns:
            The loss.
        """
        differentiate = kwargs.pop("differentiate", None) or self._differentiate
        differentiate = function_or_none(optimizer) or differentiate
        if differentiate is None and (args or kwargs):
            differentiate = lambda loss: loss.backward(*args, **kwargs)  # type: ignore[no-untyped-call]  # noqa: E731
        if self._keeps_loss:
            self.loss = closure_loss.detach()
        self.pre_backward(closure_loss)
        super().backward(closure_loss, differentiate)
        self.post_backward(closure_loss)
        return closure_loss

    def native_backward(self, loss: Tensor, differentiate: Any, override: Callable[..., Any]) -> Any:
        """Differentiate a loss by an override of `backward`. Collective if gradients are averaged."""
        self._differentiate = differentiate
        try:
            return override(self, loss, *self.arguments_of_backward())
        finally:
            self._differentiate = None

    def pre_backward(self, closure_loss: Tensor) -> None:
        """Do nothing; called before a backward."""

    def post_backward(self, closure_loss: Tensor) -> None:
        """Do nothing; called after a backward."""

    def optimizer_step(self, optimizer: Optimizer, closure: Callable[[], Any] | None = None, model: Any = None) -> Any:
        """Update the weights, by the precision's `optimizer_step` if that is overridden. Collective."""
        own = None if isinstance(closure, Done) else closure
        if is_overridden(self.precision, "optimizer_step"):
            precision: Any = self.precision
            with precision.within(super().optimizer_step):
                model = model or self.lightning_module
                return precision.optimizer_step(optimizer, model=model, closure=own or Done(self.loss))
        return super().optimizer_step(optimizer, own)

    def clip_gradients(self, optimizer: Optimizer, clip_val: float, algorithm: str) -> None:
        """Clip an optimizer's gradients, by the precision's methods if these are overridden. Collective."""
        names = ("clip_gradients", "clip_grad_by_norm", "clip_grad_by_value")
        if any(is_overridden(self.precision, name) for name in names):
            precision: Any = self.precision
            with precision.within(super().clip_gradients):
                precision.clip_gradients(optimizer, clip_val, algorithm)
        else:
            super().clip_gradients(optimizer, clip_val, algorithm)

    # collectives

    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean", *, op: Any = None) -> Any:  # type: ignore[override]
        """Reduce a tensor over all ranks, or a number. Collective.

        Args:
            tensor: The tensor, or a number.
            group: None, or what `op` is.
            reduce_op: "mean", "sum", "max" or "min", or torch's `ReduceOp`.
            op: Another name of it.

        Raises:
            ValueError: If there is another group.
        """
        op = op or (group if isinstance(group, str) else None)
        if group is not None and not isinstance(group, str) and group is not torch.distributed.group.WORLD:
            action = "Call `torch.distributed.all_reduce` for it."
            raise ValueError(must_be("group", "None, which is all ranks", group, "reduce", action))
        wanted = str(op or reduce_op).rpartition(".")[2].lower()  # torch's `ReduceOp` has upper case
        return super().reduce(tensor, "mean" if wanted == "avg" else wanted)  # type: ignore[arg-type]

    def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:
        """Return whether all processes have decided so, or any of them. Collective.

        Args:
            decision: The decision of this process.
            all: Whether all of them have to be true, or one.
        """
        return bool(self.reduce(int(decision), reduce_op="min" if all else "max"))

    def all_gather(self, value: Any, group: Any = None, sync_grads: bool = False) -> Any:
        """Return a list of the values of all ranks; for a group or with gradients, a stacked tensor. Collective."""
        if group is None and not sync_grads:
            return self.native_all_gather(value)
        return self.lightning_module.all_gather(value, group, sync_grads)

    def native_all_gather(self, value: Any) -> Any:
        """Return a list of the values of all ranks. Collective."""
        return super().all_gather(value)

    # states and files

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """Return the module's state."""
        state: dict[str, Any] = self.lightning_module.state_dict()
        return state

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """Return an optimizer's state; of one that shards it, as torch's `ZeroRedundancyOptimizer`, all on rank 0.

        Collective for such an optimizer.
        """
        consolidate = getattr(optimizer, "consolidate_state_dict", None)
        if consolidate is None:
            return optimizer.state_dict()
        consolidate()
        return optimizer.state_dict() if self.is_global_zero else {}

    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        """Load the module's state of a checkpoint."""
        super().load_module_state(self.lightning_module, checkpoint["state_dict"], strict)

    def load_module_state(self, module: nn.Module, state: Mapping[str, Any], strict: bool = True) -> None:
        """Load whole tensors into a module, by `load_model_state_dict` if that is overridden."""
        if module is not self.lightning_module or not is_overridden(self, "load_model_state_dict"):
            super().load_module_state(module, state, strict)
            return
        checkpoint = {**self._checkpoint(), "state_dict": state}
        self.load_model_state_dict(checkpoint, **accepted(self.load_model_state_dict, strict=strict))

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """Load the optimizers' states of a checkpoint."""
        for optimizer, state in zip(self.optimizers, checkpoint["optimizer_states"], strict=False):
            super().load_optimizer_state(optimizer, state)

    def load_optimizer_state(self, optimizer: Optimizer, state: Mapping[str, Any]) -> None:
        """Load whole tensors into an optimizer, or into all at the first by an override of the method above."""
        if not is_overridden(self, "load_optimizer_state_dict"):
            super().load_optimizer_state(optimizer, state)
        elif optimizer is self.optimizers[0]:
            self.load_optimizer_state_dict(self._checkpoint())

    def _checkpoint(self) -> Mapping[str, Any]:
        run = getattr(self.trainer, "current_run", None)
        return getattr(run, "checkpoint", None) or {}

    def prepared(self, checkpoint: Mapping[str, Any]) -> dict[str, Any]:
        """Return a checkpoint with the states that overrides return."""
        found = dict(checkpoint)
        if is_overridden(self, "lightning_module_state_dict"):
            found["state_dict"] = self.lightning_module_state_dict()
        return found

    def save_checkpoint(self, checkpoint: Mapping[str, Any], filepath: Any, storage_options: Any = None) -> Any:
        """Write a checkpoint. Collective, unless a subclass overrides it or a plugin writes, on rank 0.

        Args:
            checkpoint: The checkpoint.
            filepath: The file.
            storage_options: For the plugin.
        """
        is_own = isinstance(checkpoint, ObjectsInPlace)  # and not from an override
        content = self.prepared(checkpoint) if is_own else dict(checkpoint)
        if not self.writes_whole or (self._checkpoint_io is None and is_own):
            return super().save_checkpoint(ObjectsInPlace(content), str(filepath))
        pending: PendingSave | None = None
        if self.is_global_zero:
            io: Any = self.checkpoint_io
            further = {} if storage_options is None else {"storage_options": storage_options}
            pending = io.save_checkpoint(content if is_own else checkpoint, filepath, **further)
        if is_own:
            self.barrier("save_checkpoint")
        return pending

    writes_whole: ClassVar[bool] = True

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> Any:
        """Read a checkpoint with whole tensors on the CPU, by the plugin if there is one. Collective."""
        if not self.writes_whole or self._checkpoint_io is None:
            return super().load_checkpoint(str(checkpoint_path), weights_only=weights_only)
        read = self._checkpoint_io.load_checkpoint
        return read(checkpoint_path, **({} if weights_only is None else accepted(read, weights_only=weights_only)))

    def remove_checkpoint(self, filepath: Any) -> None:
        """Remove a checkpoint, on rank 0, by the plugin if there is one."""
        if self.is_global_zero:
            self.checkpoint_io.remove_checkpoint(filepath)

    def teardown(self) -> None:
        """Restore the optimizers, and let plugins end."""
        super().teardown()
        self._model = None
        for plugin in (self._checkpoint_io, self.cluster_environment, self._accelerator):
            end: Any = getattr(plugin, "teardown", None)
            if end is not None and type(plugin) not in RECOGNISED:
                end()

    @classmethod
    def register_strategies(cls, strategy_registry: Any) -> None:
        """Put the class into a registry; by default nothing."""

    def _warn_of_overrides(self) -> None:
        """Warn once of methods that a subclass has and nothing calls."""
        for one in (self, self.precision):
            ignored = [f"`{name}`" for name in getattr(one, "never_called", ()) if is_overridden(one, name)]
            if ignored and not self._has_warned:
                warn_user(
                    f"{type(one).__name__} overrides {', '.join(ignored)}, which nothing calls here. {_ELSEWHERE}"
                )
        self._has_warned = True


class SingleDeviceStrategy(Strategy, _SingleDeviceStrategy):
    """`camshaft.strategies.SingleDeviceStrategy`, on the CPU by default.

    Args:
        device: As today.
        accelerator: None, or one for devices of that kind.
        checkpoint_io, precision_plugin: As in `Strategy`.
        kwargs: Today's further arguments.

    Raises:
        ValueError, RuntimeError: As today.
    """

    of_trainer: ClassVar[Sequence[str]] = ("precision",)
    strategy_name: Any = "single_device"

    def __init__(
        self,
        device: Any = "cpu",
        accelerator: Any = None,
        checkpoint_io: Any = None,
        precision_plugin: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(accelerator, checkpoint_io, precision_plugin)
        self._root_device, self._further = torch.device(device) if device != "auto" else device, kwargs

    def native_arguments(self) -> dict[str, Any]:
        kind = None if self._accelerator is None else getattr(self._accelerator, "name", lambda: self._accelerator)()
        if kind in ("cpu", "cuda", "mps") and self._root_device != "auto" and kind != self._root_device.type:
            rule, action = f"one for {self._root_device.type!r}, as `device` is", "Leave it out."
            raise ValueError(must_be("accelerator", rule, self._accelerator, type(self).__name__, action))
        return {**super().native_arguments(), **self._further, "device": self._root_device}

    def __getattr__(self, name: str) -> Any:
        """Return the device or the precision also before a trainer has the strategy."""
        if name not in ("device", "precision") or self._is_attached:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
        self.attach({})
        return getattr(self, name)
