"""Callback that finds the largest batch size that fits into memory, before training."""

import gc
import logging
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from typing import Any, NamedTuple, TypeVar, cast

import attrs
import torch

from camshaft.callbacks.arguments import InvalidArgumentError, check_number, check_one_of
from camshaft.callbacks.finders.trials import (
    SearchBeforeFit,
    TrialSteps,
    any_rank,
    endless,
    find_attribute,
    get_attribute,
    restored,
    set_attribute,
)
from camshaft.hooks_core.protocols import TrainerProtocol
from camshaft.hooks_core.support.messages import must_be

_log = logging.getLogger(__name__)

_MISSING: Any = object()

T = TypeVar("T")


@attrs.define(slots=False, eq=False, repr=False)
class BatchSizeFinder(SearchBeforeFit):
    """Tries batch sizes when a fit starts, and trains with the largest that fits into memory.

    For each size the attribute is set, a loader is requested from `train_dataloader`, and some training steps are made
    and rolled back: the fit that follows is the same as one that starts with the size that was found. The loaders are
    then requested again. It runs once, at the start of a fit; a resumed fit takes the size from the checkpoint, before
    loaders are requested, and does not search. Under `fast_dev_run` it does nothing.

    The search ends early if an epoch is a single batch, since a larger size would change nothing. It tells how it goes
    by the logger `camshaft.callbacks.finders.batch_size_finder`, at the level INFO.

    With several processes the size is that of each rank, all try the same, and a size must fit on every rank. If one
    rank runs out of memory in a `training_step`, a backward or an update, the others learn of it where ranks compute
    independently, as under DDP. Where they do not, as with sharded parameters, the others would wait for that rank:
    memory must then run out on all ranks alike, or the run ends with an error.

    Args:
        mode: "power" doubles the size until memory runs out; "binsearch" then bisects between the last two.
        steps_per_trial: Training steps for each size.
        init_val: First size; if it is too large, smaller ones are tried.
        max_trials: Largest number of sizes to try; with 0, `init_val` is taken as it is.
        batch_arg_name: Attribute or hyperparameter of the module or the data module for the size.
        margin: Share by which to reduce the size that "binsearch" found, if memory ran out: from 0 to below 1.
        max_val: The largest size to try.

    Attributes:
        optimal_batch_size: The size that was found; None before.
        trials: The sizes that were tried, in order, each with whether it fits.

    Raises:
        InvalidArgumentError: If an argument is out of range; in `setup`, if the module optimizes manually or there is
            no such attribute; when the fit starts, if there is not exactly one optimizer, or the loader does not follow
            the attribute.
        ValueError: When the fit starts, if the training loader was passed to fit and cannot be requested again.
        MemoryError: When the fit starts, if none of the sizes fits.
    """

    mode: str = "power"
    steps_per_trial: int = 3
    init_val: int = 2
    max_trials: int = 25
    batch_arg_name: str = "batch_size"
    margin: float = 0.05
    max_val: int = 8192
    optimal_batch_size: int | None = attrs.field(default=None, init=False)
    trials: list[tuple[int, bool]] = attrs.field(factory=list, init=False)

    def __attrs_post_init__(self) -> None:
        check_one_of(self, ("power", "binsearch"), mode=self.mode)
        check_number(self, least=1, steps_per_trial=self.steps_per_trial, init_val=self.init_val)
        check_number(self, least=0, max_trials=self.max_trials)
        check_number(self, least=0, below=1, margin=self.margin)
        check_number(self, "Pass at least `init_val`.", least=self.init_val, max_val=self.max_val)

    def scale_batch_size(self, trainer: TrainerProtocol, module: Any) -> int:
        """Search with the module now, and set the attribute; loaders are then requested again. Collective.

        Returns:
            The size.

        Raises:
            MemoryError: If none of the sizes fits.
        """
        trials = _Trials(trainer, module, self.steps_per_trial, type(self).__name__)
        return self.find(_owners(trainer, module), trials.run)

    def find(self, owners: Sequence[Any], attempt: Callable[[int], "Trial"]) -> int:
        """Search by trials of the caller, and set the attribute.

        Args:
            owners: Objects of which any may have the attribute or hyperparameter, such as a module and a data module.
            attempt: Tries a size, to which the attribute was set before.

        Returns:
            The size.

        Raises:
            MemoryError: If none of the sizes fits.
            InvalidArgumentError: If none of the owners has the attribute.
        """
        name = find_attribute(owners, [self.batch_arg_name], "batch_arg_name", self)
        before = get_attribute(owners, name)
        free_memory()  # garbage must not count
        self.trials, tried = [], [Trial(fits=False)]

        def fits(size: int) -> bool:
            if self.trials:
                outcome = "succeeded" if tried[-1].fits else "failed"
                _log.info("Batch size %d %s, trying batch size %d.", self.trials[-1][0], outcome, size)
            set_attribute(owners, name, size)
            newest = attempt(size)
            if newest.is_whole_epoch:
                _log.info("The batch size %d is greater or equal than the length of your dataset.", size)
            tried.append(newest)
            self.trials.append((size, newest.fits))
            return newest.fits

        def largest() -> int:
            return self.trials[-1][0] if tried[-1].is_whole_epoch else self.max_val

        try:
            found = search(self.mode, fits, start=self.init_val, largest=largest, max_trials=self.max_trials)
            size = self._choose(found, any(one.ran_out for one in tried))
        except BaseException:
            set_attribute(owners, name, before)
            raise
        set_attribute(owners, name, size)
        _log.info("Finished the search of a batch size: %d.", size)
        self.optimal_batch_size = size
        return size

    def state_dict(self) -> dict[str, Any]:
        """Return the size and the trials."""
        return {"optimal_batch_size": self.optimal_batch_size, "trials": [list(trial) for trial in self.trials]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore size and trials."""
        self.optimal_batch_size = state_dict["optimal_batch_size"]
        self.trials = [(size, fits) for size, fits in state_dict["trials"]]

    def _check_attribute(self, trainer: TrainerProtocol, module: Any) -> None:
        find_attribute(_owners(trainer, module), [self.batch_arg_name], "batch_arg_name", self)

    def _use_loaded(self, trainer: TrainerProtocol, module: Any, state: dict[str, Any]) -> None:
        if state["optimal_batch_size"] is not None:
            set_attribute(_owners(trainer, module), self.batch_arg_name, state["optimal_batch_size"])

    def _run_search(self, trainer: TrainerProtocol, module: Any) -> None:
        self.scale_batch_size(trainer, module)

    def _choose(self, found: int | None, ran_out: bool) -> int:
        """Return the size to use, given the largest that fits, or None, and whether memory ever ran out."""
        tried = [size for size, _ in self.trials]
        if not tried:
            return self.init_val
        if found is None:
            action = "Pass a smaller `init_val` or more `max_trials`, or make the model smaller."
            where = type(self).__name__
            raise MemoryError(must_be(self.batch_arg_name, "a size that fits memory and data", tried, where, action))
        has_margin = self.mode == "binsearch" and ran_out
        return max(1, int(found * (1 - self.margin))) if has_margin else found


class Trial(NamedTuple):
    """The result of a trial of a size.

    Attributes:
        fits: Whether there was enough memory, and a batch at all.
        is_whole_epoch: Whether an epoch is a single batch, so that a larger size would change nothing.
        ran_out: Whether memory ran out.
    """

    fits: bool
    is_whole_epoch: bool = False
    ran_out: bool = False


class _Trials:
    """Makes training steps with loaders of one size after the other.

    Args:
        num_steps: Steps to make for each size.
        where: The class to name in errors.
    """

    def __init__(self, trainer: TrainerProtocol, module: Any, num_steps: int, where: str) -> None:
        self._trainer = trainer
        self._strategy = trainer.strategy
        self._module = module
        self._steps = TrialSteps(trainer, module, where)
        self._num_steps = num_steps
        self._where = where
        self._known: tuple[int, int] | None = None

    def run(self, size: int) -> Trial:
        """Return whether all steps fit on all ranks, with a loader that is requested now. Collective."""
        with self._trainer.trial(reload=True) as batches:
            self._check_size(size, getattr(batches, "batch_size", None))
            try:
                is_whole_epoch = len(batches) <= 1  # type: ignore[arg-type]
            except TypeError:
                is_whole_epoch = False
            with restored(self._module, [self._steps.optimizer], self._strategy):
                try:
                    return Trial(self._make_steps(batches), is_whole_epoch)
                except _OutOfMemoryError:
                    return Trial(False, is_whole_epoch, ran_out=True)

    def _make_steps(self, batches: Any) -> bool:
        steps, given = self._steps, islice(endless(batches), self._num_steps)
        synchronise = self._strategy.set_gradient_sync
        try:
            for batch_idx in range(self._num_steps):
                # gradients are not synchronised yet, so that no rank waits for one that has run out of memory
                synchronise(False)
                batch = self._attempt(partial(next, given, _MISSING))
                if any_rank(self._strategy, batch is _MISSING):
                    return False
                loss = self._attempt(partial(steps.forward, batch, batch_idx))
                self._attempt(partial(steps.backward, loss))
                del loss
                synchronise(True)
                self._attempt(partial(steps.update, partial(steps.evaluate, [batch], batch_idx)))
        finally:
            synchronise(True)
        return True

    def _attempt(self, action: Callable[[], T]) -> T:
        """Return a function's result. Raise `_OutOfMemoryError` if any rank ran out of memory. Collective."""
        result: T | None = None
        has_failed = False
        try:
            result = action()
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            has_failed = True
        if has_failed:
            free_memory()
        if any_rank(self._strategy, has_failed):
            raise _OutOfMemoryError
        return cast(T, result)

    def _check_size(self, size: int, of_loader: int | None) -> None:
        """Raise if the loaders for two different sizes have the same size."""
        known, self._known = self._known, None if of_loader is None else (size, of_loader)
        if known is not None and self._known is not None and known[0] != size and known[1] == of_loader:
            rule = f"one that follows the attribute (which is {size} now, and was {known[0]})"
            action = "Build a loader of that size in `train_dataloader`, each time that it is called."
            raise InvalidArgumentError("batch size of the train loader", rule, of_loader, self._where, action)


class _OutOfMemoryError(Exception):
    """Leaves the steps of a trial, on all ranks."""


def _owners(trainer: TrainerProtocol, module: Any) -> list[Any]:
    """Return the module, and the trainer's data module or None."""
    return [module, getattr(trainer, "datamodule", None)]


def search(
    mode: str,
    fits: Callable[[int], bool],
    *,
    start: int,
    largest: Callable[[], int],
    max_trials: int,
) -> int | None:
    """Double a size until it does not fit, halve it if the first one does not; then, if asked for, bisect between.

    Args:
        mode: "power" only doubles; "binsearch" then bisects between the largest size that fits and the smallest that
            does not.
        fits: Tries a size, and returns whether it fits.
        start: The first size to try.
        largest: Returns the largest useful size; called after each trial.
        max_trials: Largest number of trials.

    Returns:
        The largest size that fit; None if none did.
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
            size //= 2
        elif bad is None:
            size = min(2 * good, largest())
        else:
            size = good if mode == "power" else (good + bad) // 2
        if size <= (good or 0):
            break
    return good


_OUT_OF_MEMORY_TEXTS = (
    "out of memory",  # CUDA, MPS, XPU
    "DefaultCPUAllocator",  # torch on the CPU: "can't allocate memory", or "not enough memory" on Windows
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_NOT_SUPPORTED",  # also said for tensors that are not contiguous; github.com/pytorch/pytorch#4107
)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error, or its cause, says that memory ran out."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    if isinstance(error, RuntimeError) and any(text in str(error) for text in _OUT_OF_MEMORY_TEXTS):
        return True
    return error.__cause__ is not None and is_out_of_memory(error.__cause__)


def free_memory() -> None:
    """Collect garbage, and release the memory that torch caches."""
    gc.collect()
    if torch.accelerator.is_available():
        torch.accelerator.empty_cache()
