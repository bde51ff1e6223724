"""Callback for stochastic weight averaging: the mean of the weights at the ends of the last epochs."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar

import attrs
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim.swa_utils import SWALR

from camshaft.callbacks.arguments import InvalidArgumentError, check_number, check_one_of
from camshaft.callbacks.weights.averaged_weights import AveragedWeights
from camshaft.callbacks.weights.weight_averaging import AVERAGING_KEY, TRAINING_WEIGHTS_KEY, check_no_other_averaging
from camshaft.hooks_core import Callback, no_op
from camshaft.hooks_core.protocols import Strategy, TrainerProtocol
from camshaft.hooks_core.support.messages import must_be


@attrs.define(slots=False, eq=False, repr=False)
class StochasticWeightAveraging(Callback):
    """Averages the weights of the last epochs, which have a separate learning rate.

    As in algorithm 1 of Izmailov et al., "Averaging Weights Leads to Wider Optima and Better Generalization" (UAI
    2018), the average starts with the weights before the first of these epochs, and includes those after each. From
    then on torch's `SWALR` replaces all learning-rate schedulers. When training ends, the module gets the average, and
    the statistics of batch normalisation are recomputed over the training data of all ranks, see `forward_batch`;
    loaders and random numbers are unchanged afterwards. Until then, validation has the weights of training.

    Checkpoints hold both, so `fit(ckpt_path=...)` resumes exactly, with this callback. "state_dict" has the weights of
    training, and after the end of training the average.

    Args:
        swa_lrs: Final learning rate of these epochs; or a list with one for each parameter group; or None: each group
            keeps its learning rate.
        swa_epoch_start: The first of these epochs, counted from 1; a float is a fraction of `max_epochs`.
        annealing_epochs: Number of epochs to anneal to the learning rate; 0 sets it at once.
        annealing_strategy: "cos" or "linear" annealing.
        avg_fn: Returns a new average: `avg_fn(average, weight, num_averaged)`. By default all weights count equally.
        device: Device of the average; None is that of each weight.

    Attributes:
        average_model: The average once it has started; None before.

    Raises:
        InvalidArgumentError: If an argument is out of range; in fit, if `max_epochs` is too small, or the number of
            learning rates is not that of the parameter groups.
        ValueError: In fit, if there are several optimizers or another callback that averages weights; or with batch
            normalisation, if the module has no `forward`, or the training loader's state cannot be restored.
    """

    averages_weights: ClassVar[bool] = True
    includes_last_epoch: ClassVar[bool] = True
    """True if the weights after the last epoch are averaged as well."""

    swa_lrs: float | list[float] | None
    swa_epoch_start: int | float = 0.8
    annealing_epochs: int = 10
    annealing_strategy: str = "cos"
    avg_fn: Any = None
    device: torch.device | str | int | None = "cpu"
    average_model: AveragedWeights | None = attrs.field(default=None, init=False)
    _first_epoch: int = attrs.field(default=0, init=False)
    _start_epoch: int = attrs.field(default=0, init=False)
    _latest_epoch: int = attrs.field(default=-1, init=False)  # number of epochs before the latest average
    _scheduler: SWALR | None = attrs.field(default=None, init=False)
    # batch statistics of training, once the module has the average
    _kept: dict[str, Tensor] | None = attrs.field(default=None, init=False)
    _loaded: dict[str, Any] | None = attrs.field(default=None, init=False)
    _is_fitting: bool = attrs.field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        lrs, start = self.swa_lrs, self.swa_epoch_start
        rates = lrs if isinstance(lrs, list) and lrs else [] if lrs is None else [lrs]
        if not all(isinstance(rate, (int, float)) and not isinstance(rate, bool) and rate > 0 for rate in rates):
            rule = "a positive number, a list of them, or None"
            raise InvalidArgumentError("swa_lrs", rule, lrs, self, "Pass a learning rate.")
        is_fraction = isinstance(start, float) and 0.0 <= start <= 1.0
        if not is_fraction and (not isinstance(start, int) or isinstance(start, bool) or start < 1):
            rule = "the number of an epoch (an int from 1 on) or a fraction of epochs (a float from 0 to 1)"
            raise InvalidArgumentError("swa_epoch_start", rule, start, self, "Pass one of these.")
        action = "Pass a number of epochs."
        check_number(self, action, least=0, is_int=True, annealing_epochs=self.annealing_epochs)
        check_one_of(self, ("cos", "linear"), annealing_strategy=self.annealing_strategy)
        if self.avg_fn is None:
            del self.avg_fn  # a subclass may define it
            self.avg_fn = getattr(self, "avg_fn", None)

    @property
    def n_averaged(self) -> Tensor | None:
        """Number of averaged weights, as a tensor; None before averaging starts."""
        return None if self.average_model is None else self.average_model.n_averaged

    @property
    def swa_start(self) -> int:
        """Zero-based index of the first of these epochs; known when fit has begun."""
        return self._first_epoch

    def forward_batch(self, module: Any, batch: Any) -> Any:
        """Compute the forward of a training batch, for the statistics of batch normalisation; to be overridden.

        The default calls the module with the batch; of a list or tuple, with its first item.

        Returns:
            What the module returned; nobody reads it.
        """
        return module(batch[0] if isinstance(batch, (list, tuple)) else batch)

    def setup(self, trainer: TrainerProtocol, module: Any, stage: str) -> None:
        """Compute the first epoch."""
        self._is_fitting = stage == "fit"
        if not self._is_fitting:
            return
        check_no_other_averaging(self, trainer)
        self.average_model = self._scheduler = self._kept = self._loaded = None
        self._latest_epoch = -1
        self._first_epoch = self._start_epoch = self._find_first_epoch(trainer)

    def on_load_checkpoint(self, trainer: TrainerProtocol, module: Any, checkpoint: dict[str, Any]) -> None:
        """Give the module the weights of training in fit, and keep the average for `on_fit_start`."""
        self.average_model = self._kept = None
        if self._is_fitting:
            if TRAINING_WEIGHTS_KEY in checkpoint:
                checkpoint["state_dict"] = checkpoint.pop(TRAINING_WEIGHTS_KEY)
            loaded = checkpoint.get(AVERAGING_KEY, {})
            self._loaded = loaded if "weights" in loaded else None

    def on_fit_start(self, trainer: TrainerProtocol, module: Any) -> None:
        """Check requirements; restore a checkpoint's average. Collective."""
        where = type(self).__name__
        if len(trainer.optimizers) != 1:
            action = "Use one optimizer, or EMAWeightAveraging."
            raise ValueError(must_be("optimizers", "one optimizer", len(trainer.optimizers), where, action))
        # further groups may come before averaging begins
        self._check_num_rates(trainer.optimizers[0], self.swa_lrs, may_grow=True)
        if batch_norms(module):
            has_forward = type(module).forward is not nn.Module.forward
            if not has_forward and type(self).forward_batch is StochasticWeightAveraging.forward_batch:
                action = f"Define it, or override `forward_batch` of {where}."
                rule = "implemented to recompute batch-norm statistics"
                raise ValueError(must_be("forward", rule, None, type(module).__qualname__, action))
            with trainer.trial():  # fails here rather than after training
                pass
        loaded, self._loaded = self._loaded, None
        if loaded is not None:
            average, num_averaged = self._begin(trainer, module), int(loaded["n_averaged"])
            average.load_values(loaded["weights"], num_averaged, trainer.strategy.place_like)

    def on_train_epoch_start(self, trainer: TrainerProtocol, module: Any) -> None:
        """Start averaging if due, or add the weights at the end of the previous epoch."""
        epoch = trainer.current_epoch
        if epoch < self._first_epoch and self.average_model is None:
            return
        if self.average_model is None:
            self._begin(trainer, module)
            self._start_epoch = epoch
        scheduler = self._scheduler
        while scheduler is not None and scheduler.last_epoch < epoch - self._start_epoch:
            scheduler.step()  # for a trainer that does not step added schedulers
        self._add_weights(epoch)

    def on_train_end(self, trainer: TrainerProtocol, module: Any) -> None:
        """Give the module the average, with recomputed statistics of batch normalisation. Collective."""
        self._apply(trainer, module)

    def on_fit_end(self, trainer: TrainerProtocol, module: Any) -> None:
        """Give the module the average where nothing was left to train. Collective."""
        if self._kept is None:
            self._apply(trainer, module)

    def on_save_checkpoint(self, trainer: TrainerProtocol, module: Any, checkpoint: dict[str, Any]) -> None:
        """Save the average, and the weights of training if the module has the average."""
        average = self.average_model
        if average is None or not average.is_of(module) or "callbacks" not in checkpoint:
            return
        values = average.named_values()
        if self._kept is not None:
            training = {**values, **self._kept}
            here = checkpoint["state_dict"]
            checkpoint[TRAINING_WEIGHTS_KEY] = {name: training.get(name, value) for name, value in here.items()}
            own = dict(module.named_parameters(remove_duplicate=False))
            values = {name: own[name].detach() for name in values}
        checkpoint[AVERAGING_KEY] = {"n_averaged": average.n_averaged.clone(), "weights": values}

    def state_dict(self) -> dict[str, Any]:
        """Return the first epoch, and the number of epochs before the latest average."""
        return {"begun_epoch": self._start_epoch, "latest_epoch": self._latest_epoch}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore both."""
        self._start_epoch = state_dict["begun_epoch"]
        self._latest_epoch = state_dict["latest_epoch"]

    def _find_first_epoch(self, trainer: TrainerProtocol) -> int:
        start = self.swa_epoch_start
        limit = None if trainer.max_epochs == -1 else trainer.max_epochs
        if isinstance(start, float):
            if limit is None:
                action = "Pass `swa_epoch_start` as the number of an epoch, or set `max_epochs`."
                raise InvalidArgumentError("max_epochs", "set when `swa_epoch_start` is a fraction", None, self, action)
            start = int(start * limit)
        elif limit is not None and start > limit and not trainer.fast_dev_run:
            action = "Pass a smaller one, or train longer."
            raise InvalidArgumentError("swa_epoch_start", f"at most `max_epochs` ({limit})", start, self, action)
        return max(start - 1, 0)

    def _begin(self, trainer: TrainerProtocol, module: Any) -> AveragedWeights:
        """Allocate the average, and replace the schedulers."""
        optimizer, lrs, annealing_epochs = trainer.optimizers[0], self.swa_lrs, self.annealing_epochs
        if lrs is None:
            # at once: annealing a rate to itself would round it
            lrs, annealing_epochs = [group["lr"] for group in optimizer.param_groups], 0
        self._check_num_rates(optimizer, lrs)
        scheduler: Any = SWALR(optimizer, lrs, annealing_epochs, self.annealing_strategy)  # type: ignore[arg-type]
        self._scheduler = scheduler
        for group in optimizer.param_groups:
            group["initial_lr"] = group["swa_lr"]
        _replace_schedulers(trainer.lr_scheduler_configs, scheduler)
        self.average_model = AveragedWeights(module, self.device, self.avg_fn)
        return self.average_model

    def _check_num_rates(self, optimizer: Any, lrs: float | list[float] | None, *, may_grow: bool = False) -> None:
        num_groups = len(optimizer.param_groups)
        if isinstance(lrs, list) and (len(lrs) < num_groups or (len(lrs) > num_groups and not may_grow)):
            rule = f"one number or {num_groups}, one of each parameter group"
            raise InvalidArgumentError("swa_lrs", rule, lrs, self, "Pass as many.")

    def _apply(self, trainer: TrainerProtocol, module: Any) -> None:
        if self.includes_last_epoch:
            self._add_weights(trainer.current_epoch)
        if self.average_model is None:
            return
        self._kept = batch_norm_buffers(module)
        self.average_model.exchange()
        if self._kept:
            forward = trainer.strategy.wrap_step(partial(self.forward_batch, module))
            with trainer.trial() as batches:
                update_batch_norm(module, batches, forward, trainer.strategy)

    def _add_weights(self, num_epochs: int) -> None:
        if num_epochs > self._latest_epoch and self.average_model is not None:
            self.average_model.update_parameters()
            self._latest_epoch = num_epochs


def _replace_schedulers(configs: list[Any], scheduler: SWALR) -> None:
    """Replace all schedulers by one that steps after each epoch."""
    of_epochs = {"interval": "epoch", "frequency": 1, "monitor": None}
    if not configs:
        configs.append(SimpleNamespace(**of_epochs, strict=True, name=None))
    for idx, config in enumerate(configs):
        # the others have a place in the checkpoint, and do nothing
        parts = {"optimizer": scheduler.optimizer, "get_last_lr": scheduler.get_last_lr}
        idle = SimpleNamespace(**parts, step=no_op, state_dict=dict, load_state_dict=no_op)
        config.scheduler = idle if idx else scheduler
        for name, value in of_epochs.items():
            if hasattr(config, name):
                setattr(config, name, value)


_MISSING = object()


def batch_norms(module: nn.Module) -> list[Any]:
    """Return the layers of batch normalisation that are in training mode and track statistics."""
    return [
        part
        for part in module.modules()
        if isinstance(part, _BatchNorm) and part.training and part.track_running_stats and part.running_mean is not None
    ]


def batch_norm_buffers(module: nn.Module) -> dict[str, Tensor]:
    """Return copies of the statistics of those layers, by all names under which the module saves them."""
    own = {id(buffer) for layer in batch_norms(module) for buffer in layer.buffers(recurse=False)}
    buffers = module.named_buffers(remove_duplicate=False)
    return {name: buffer.detach().clone() for name, buffer in buffers if id(buffer) in own}


@torch.no_grad()
def update_batch_norm(
    module: nn.Module, batches: Iterable[Any], forward: Callable[[Any], Any], strategy: Strategy
) -> None:
    """Recompute the statistics as means over batches, like `torch.optim.swa_utils.update_bn`. Collective.

    Layers in evaluation mode and all else in the module stay unchanged. The batches of all ranks count, until one has
    none left.

    Args:
        module: The module, in training mode.
        batches: This rank's batches, on their device.
        forward: Computes the module's forward on a batch.
        strategy: The run's strategy.

    Raises:
        RuntimeError: If there is no batch.
    """
    layers = batch_norms(module)
    momenta = [layer.momentum for layer in layers]
    try:
        for layer in layers:
            layer.reset_running_stats()
            layer.momentum = None  # the mean over all batches
        num_batches = 0
        for batch in _while_all_have_batches(batches, strategy):
            forward(batch)
            num_batches += 1
    finally:
        for layer, momentum in zip(layers, momenta, strict=True):
            layer.momentum = momentum
    if not num_batches:
        raise RuntimeError(
            "`train loader` must give batches again after training for the statistics of batch normalisation, but got "
            "none in update_batch_norm. Pass a loader that can be read several times, not a generator."
        )
    if strategy.world_size > 1:
        _average([layer for layer in layers if not isinstance(layer, nn.SyncBatchNorm)], strategy)


def _average(layers: list[Any], strategy: Strategy) -> None:
    """Average the statistics over the batches of all ranks. Collective."""
    parts: list[Tensor] = []
    for layer in layers:
        count = layer.num_batches_tracked
        parts += [count.reshape(1).float(), layer.running_mean.float() * count, layer.running_var.float() * count]
    if not parts:
        return
    sums = torch.split(strategy.reduce(torch.cat(parts), "sum"), [part.numel() for part in parts])
    for layer, count, mean, var in zip(layers, sums[::3], sums[1::3], sums[2::3], strict=True):
        layer.running_mean.copy_(mean / count)
        layer.running_var.copy_(var / count)
        # ranks that share a batch have all counted it
        layer.num_batches_tracked.fill_(int(count) * strategy.num_data_ranks // strategy.world_size)


def _while_all_have_batches(batches: Iterable[Any], strategy: Strategy) -> Iterator[Any]:
    """Yield batches while all ranks have one. Collective."""
    if strategy.world_size == 1:
        yield from batches
        return
    iterator = iter(batches)
    while True:
        batch = next(iterator, _MISSING)
        if not strategy.reduce(torch.tensor(int(batch is not _MISSING)), "min").item():
            return
        yield batch
