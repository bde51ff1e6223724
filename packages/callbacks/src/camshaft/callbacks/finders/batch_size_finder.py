"""Finding the largest batch size that memory allows, before training."""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, cast

import attrs
import torch
from torch import Tensor

from camshaft.callbacks.arguments import InvalidArgumentError
from camshaft.callbacks.finders.trials import (
    SearchBeforeFit,
    TrialSteps,
    any_rank,
    endless,
    find_attribute,
    get_attribute,
    put_back,
    set_attribute,
)
from camshaft.hooks_core.messages import must_be

if TYPE_CHECKING:
    from camshaft.hooks_core.protocols import TrainerProtocol


_MODES = ("power", "binsearch")
_MISSING = object()


class BatchSizeFinder(SearchBeforeFit):
    """Tries batch sizes out when a fit starts, and trains with the largest for which memory suffices.

    For each size the attribute is set, `train_dataloader` is asked for a loader, and some training steps are made that
    leave no trace: the fit that follows is the fit that would have begun with the size that was found. The loaders are
    then asked for again. It runs once, at the start of a fit; one that resumes from a checkpoint takes the size over
    from it, before loaders are asked for, and does not search. Under `fast_dev_run` it does nothing.

    The search ends early where an epoch is a single batch: a larger size would change nothing.

    With several processes the size is that of each process, all try the same, and what is too much for one is too much
    for all. Memory that runs out in a `training_step`, in a backward or in an update of one process is told to the
    others where a process computes these by itself, as under DDP. Where it does not, as with sharded parameters, the
    others wait for it in vain: there memory must run out in all processes alike, or the run ends with an error.

    Args:
        mode: "power" doubles the size until memory runs out; "binsearch" then bisects between the last two.
        steps_per_trial: Training steps for each size.
        init_val: Size to begin with; if it is too large already, smaller ones are tried.
        max_trials: How many sizes to try.
        batch_arg_name: Attribute or hyperparameter of the module or the data module that keeps the size.
        margin: By which share to reduce what "binsearch" found, if memory did run out: from 0 to below 1.
        max_val: The largest size to try.

    Attributes:
        optimal_batch_size: The size that was found; None before.
        trials: The sizes that were tried, in order, each with whether it fits.

    Raises:
        InvalidArgumentError: If an argument is out of range; in `setup`, if the module optimizes by hand or nobody
            keeps a size under the name; when the fit starts, if there is not exactly one optimizer, or the loader does
            not follow the attribute.
        ValueError: When the fit starts, if the training loader was passed to fit and cannot be asked for again.
        MemoryError: When the fit starts, if memory does not suffice for any size that was tried.
    """

    def __init__(
        self,
        mode: str = "power",
        steps_per_trial: int = 3,
        init_val: int = 2,
        max_trials: int = 25,
        batch_arg_name: str = "batch_size",
        margin: float = 0.05,
        max_val: int = 8192,
    ) -> None:
        for field, value, rule, holds in (
            ("mode", mode, "'power' or 'binsearch'", mode in _MODES),
            ("steps_per_trial", steps_per_trial, "at least 1", steps_per_trial >= 1),
            ("init_val", init_val, "at least 1", init_val >= 1),
            ("max_trials", max_trials, "at least 1", max_trials >= 1),
            ("margin", margin, "from 0 to below 1", 0 <= margin < 1),
            ("max_val", max_val, f"at least `init_val` ({init_val})", max_val >= init_val),
        ):
            if not holds:
                raise InvalidArgumentError(field, rule, value, type(self).__name__, "Pass such a value.")
        self.mode = cast(SearchMode, mode)
        self.steps_per_trial = steps_per_trial
        self.init_val = init_val
        self.max_trials = max_trials
        self.batch_arg_name = batch_arg_name
        self.margin = margin
        self.max_val = max_val
        self.optimal_batch_size: int | None = None
        self.trials: list[tuple[int, bool]] = []

    def scale_batch_size(self, trainer: TrainerProtocol, module: Any) -> int:
        """Search now, and set the attribute; the loaders are asked for again before the next epoch. Collective.

        Returns:
            The size.

        Raises:
            MemoryError: If memory does not suffice for any size that was tried.
        """
        owners, name = _owners(trainer, module), self.batch_arg_name
        before = get_attribute(owners, name)
        free_memory()  # what others left is not to count
        trials = _Trials(trainer, module, self.steps_per_trial, type(self).__name__)
        self.trials = []

        def fits(size: int) -> bool:
            set_attribute(owners, name, size)
            self.trials.append((size, trials.run(size)))
            return self.trials[-1][1]

        def largest() -> int:
            return self.trials[-1][0] if trials.is_whole_epoch else self.max_val

        try:
            found = search(self.mode, fits, start=self.init_val, largest=largest, max_trials=self.max_trials)
            size = self._choose(found, trials.ran_out)
        except BaseException:
            set_attribute(owners, name, before)
            raise
        set_attribute(owners, name, size)
        self.optimal_batch_size = size
        return size

    def state_dict(self) -> dict[str, Any]:
        """What was found."""
        return {"optimal_batch_size": self.optimal_batch_size, "trials": [list(trial) for trial in self.trials]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Have found the same."""
        self.optimal_batch_size = state_dict["optimal_batch_size"]
        self.trials = [(size, fits) for size, fits in state_dict["trials"]]

    def _check_attribute(self, trainer: TrainerProtocol, module: Any) -> None:
        find_attribute(_owners(trainer, module), [self.batch_arg_name], "batch_arg_name", type(self).__name__)

    def _take_over(self, trainer: TrainerProtocol, module: Any, state: dict[str, Any]) -> None:
        if state["optimal_batch_size"] is not None:
            set_attribute(_owners(trainer, module), self.batch_arg_name, state["optimal_batch_size"])

    def _find(self, trainer: TrainerProtocol, module: Any) -> None:
        self.scale_batch_size(trainer, module)

    def _choose(self, found: Found, ran_out: bool) -> int:
        if found.size is None:
            tried = [size for size, _ in self.trials]
            rule = "small enough for memory, and for the data, at one of the sizes tried"
            action = "Pass a smaller `init_val` or more `max_trials`, or make the model smaller."
            raise MemoryError(must_be(self.batch_arg_name, rule, tried, type(self).__name__, action))
        if self.mode == "binsearch" and ran_out:
            return max(1, int(found.size * (1 - self.margin)))
        return found.size


class _Trials:
    """Makes training steps with loaders of one size after the other.

    Args:
        trainer: The trainer.
        module: The module.
        num_steps: Steps to make for each size.
        where: Who makes them, for errors.

    Attributes:
        is_whole_epoch: Whether the latest loader gives all that there is in one batch.
        ran_out: Whether memory ever did not suffice.
    """

    def __init__(self, trainer: TrainerProtocol, module: Any, num_steps: int, where: str) -> None:
        self.is_whole_epoch = False
        self.ran_out = False
        self._trainer = trainer
        self._strategy = trainer.strategy
        self._module = module
        self._steps = TrialSteps(trainer, module, where)
        self._num_steps = num_steps
        self._where = where
        self._known: tuple[int, int] | None = None

    def run(self, size: int) -> bool:
        """Whether all steps can be made in all processes, with a loader that is asked for now. Collective."""
        with self._trainer.trial(reload=True) as batches:
            self._check_size(size, getattr(batches, "batch_size", None))
            try:
                self.is_whole_epoch = len(batches) <= 1  # type: ignore[arg-type]
            except TypeError:
                self.is_whole_epoch = False
            with put_back(self._module, [self._steps.optimizer], self._strategy):
                return self._make_steps(batches)

    def _make_steps(self, batches: Any) -> bool:
        several = self._strategy.world_size > 1
        given = islice(endless(batches), self._num_steps)
        batch: Any = None
        loss: Tensor | None = None

        def read() -> None:
            nonlocal batch
            batch = next(given, _MISSING)

        def forward(batch_idx: int) -> None:
            nonlocal loss
            loss = self._steps.forward(batch, batch_idx)

        def backward() -> None:
            nonlocal loss
            if loss is not None:
                self._steps.backward(loss)
            loss = None

        def update(batch_idx: int) -> None:
            self._steps.update(partial(self._steps.evaluate, [batch], batch_idx))

        try:
            for batch_idx in range(self._num_steps):
                if several:
                    # gradients wait in each process, so that none waits for another one whose memory has run out
                    self._strategy.set_gradient_sync(False)
                if not self._suffices(read) or any_rank(self._strategy, batch is _MISSING):
                    return False
                if not (self._suffices(partial(forward, batch_idx)) and self._suffices(backward)):
                    return False
                if several:
                    self._strategy.set_gradient_sync(True)
                if not self._suffices(partial(update, batch_idx)):
                    return False
        finally:
            if several:
                self._strategy.set_gradient_sync(True)
        return True

    def _suffices(self, action: Callable[[], None]) -> bool:
        """Do something; whether memory suffices for it in all processes. Collective."""
        has_failed = False
        try:
            action()
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            has_failed = True
        if has_failed:
            free_memory()
        has_failed = any_rank(self._strategy, has_failed)
        self.ran_out |= has_failed
        return not has_failed

    def _check_size(self, size: int, of_loader: int | None) -> None:
        """Raise if loaders for different sizes have the same: it would be searched in vain."""
        known, self._known = self._known, None if of_loader is None else (size, of_loader)
        if known is not None and self._known is not None and known[0] != size and known[1] == of_loader:
            rule = f"one that follows the attribute (which is {size} now, and was {known[0]})"
            action = "Build a loader of that size in `train_dataloader`, each time that it is called."
            raise InvalidArgumentError("batch size of the train loader", rule, of_loader, self._where, action)


def _owners(trainer: TrainerProtocol, module: Any) -> list[Any]:
    """The module, and the data module of trainers that have one."""
    return [module, getattr(trainer, "datamodule", None)]


SearchMode = Literal["power", "binsearch"]


@attrs.frozen
class Found:
    """What a search found.

    Attributes:
        size: The largest size that was seen to fit; None if none was.
        failed: The smallest size that was seen not to fit; None if there was none.
    """

    size: int | None
    failed: int | None


def search(
    mode: SearchMode,
    fits: Callable[[int], bool],
    *,
    start: int,
    largest: Callable[[], int],
    max_trials: int,
) -> Found:
    """Double a size until it does not fit, halve it if the first one does not; then, if asked for, bisect between.

    Args:
        mode: "power" stops where doubling does; "binsearch" bisects between the largest that fits and the smallest
            that does not.
        fits: Tries a size out.
        start: The size to try first.
        largest: The largest size that makes sense, asked after each trial.
        max_trials: How many trials to make.
    """
    good: int | None = None
    bad: int | None = None
    size = start
    for _ in range(max_trials):
        if fits(size):
            good = size
        else:
            bad = size
        if good is None:
            if size == 1:
                break
            size //= 2
        elif bad is None:
            size = min(2 * good, largest())
            if size <= good:
                break
        elif mode == "power" or bad - good <= 1:
            break
        else:
            size = (good + bad) // 2
    return Found(good, bad)


_TEXTS = (
    "out of memory",  # CUDA, MPS, XPU
    "DefaultCPUAllocator",  # torch on the CPU: "can't allocate memory", or "not enough memory" on Windows
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_NOT_SUPPORTED",  # also said for tensors that are not contiguous; github.com/pytorch/pytorch#4107
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error, or what caused it, says that memory ran out."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    if isinstance(error, RuntimeError) and any(text in str(error) for text in _TEXTS):
        return True
    return error.__cause__ is not None and is_out_of_memory(error.__cause__)


def free_memory() -> None:
    """Collect garbage, and give memory back that torch keeps for later."""
    gc.collect()
    if torch.accelerator.is_available():
        torch.accelerator.empty_cache()
