"""Searches for settings outside of a fit: a learning rate, a batch size."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, get_args

import attrs

from camshaft.callbacks import BatchSizeFinder, LearningRateFinder
from camshaft.callbacks.finders.batch_size_finder import Trial, free_memory, is_out_of_memory
from camshaft.hooks_core import Callback, Receiver, no_op
from camshaft.hooks_core.spec import Verb
from camshaft.hooks_core.support.messages import must_be, warn_user
from camshaft.loops import run_verb
from camshaft.loops.data.combined_loader import length_of
from camshaft.loops.state.random_state import isolated_randomness, random_state, restore_random_state
from camshaft.trainer.running import VerbCall, choose_data, choose_module, running

if TYPE_CHECKING:
    from camshaft.callbacks import LearningRateCurve
    from camshaft.trainer.trainer import Trainer

_WHERE = "Tuner"


class Tuner:
    """Searches a learning rate or a batch size for a module, and sets what it found; nothing is trained.

    A search is the beginning of a fit: data are prepared, `setup` is called, loaders are requested and optimizers are
    configured. Trial steps are made and rolled back, and the fit ends before its first epoch, with `teardown`. Of the
    trainer's callbacks only `setup`, `teardown` and `on_exception` are called, and loggers get nothing. Afterwards
    weights and the trainer's progress and limits are as before, and random numbers as after `setup`; the next fit
    configures its optimizers with the new value.
    """

    learning_rate_finder: ClassVar[type[LearningRateFinder]] = LearningRateFinder
    batch_size_finder: ClassVar[type[BatchSizeFinder]] = BatchSizeFinder

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer

    def lr_find(
        self,
        model: Any,
        train_dataloaders: Any = None,
        val_dataloaders: Any = None,
        dataloaders: Any = None,
        datamodule: Any = None,
        method: Verb = "fit",
        min_lr: float = 1e-8,
        max_lr: float = 1,
        num_training: int = 100,
        mode: str = "exponential",
        early_stop_threshold: float | None = 4.0,
        update_attr: bool = True,
        attr_name: str = "",
    ) -> LearningRateCurve | None:
        """Train a few steps with growing learning rates, and set the rate that they suggest. Collective.

        Args:
            train_dataloaders, val_dataloaders, datamodule: As in `Trainer.fit`.
            dataloaders: None.
            method: "fit".
            min_lr: First rate.
            max_lr: Last rate.
            num_training: Number of rates to try, one update each.
            mode, early_stop_threshold, update_attr, attr_name: As in `LearningRateFinder`.

        Returns:
            The losses by rate, which suggest one and can be drawn; None under `fast_dev_run`.

        Raises:
            ValueError: If an argument is out of range, the trainer has a `LearningRateFinder`, the module has no
                attribute for the rate, or it cannot be searched for it; see `LearningRateFinder`.
        """
        if method != "fit":
            action = "Leave it out: a rate is searched by training."
            raise ValueError(must_be("method", "'fit'", method, f"{_WHERE}.lr_find", action))
        self._check(LearningRateFinder, method, train_dataloaders, val_dataloaders, dataloaders)
        finder = self.learning_rate_finder(
            min_lr, max_lr, num_training, mode, early_stop_threshold, update_attr, attr_name
        )
        loaders = {"train": train_dataloaders, "validate": val_dataloaders}
        search(self._trainer, [finder], VerbCall("fit", model, loaders, datamodule))
        return finder.optimal_lr

    def scale_batch_size(
        self,
        model: Any,
        train_dataloaders: Any = None,
        val_dataloaders: Any = None,
        dataloaders: Any = None,
        datamodule: Any = None,
        method: Verb = "fit",
        mode: str = "power",
        steps_per_trial: int = 3,
        init_val: int = 2,
        max_trials: int = 25,
        batch_arg_name: str = "batch_size",
        margin: float = 0.05,
        max_val: int = 8192,
    ) -> int | None:
        """Find the largest batch size that fits into memory, and set it. Collective.

        Args:
            train_dataloaders: A data module, or None: the loaders are requested anew for each size.
            val_dataloaders, dataloaders: None.
            method: The verb whose batches are tried. The trials of "validate", "test" and "predict" are short runs of
                that verb, in one process.
            mode, steps_per_trial, init_val, max_trials, batch_arg_name, margin, max_val: As in `BatchSizeFinder`.

        Returns:
            The size; None under `fast_dev_run`.

        Raises:
            ValueError: If an argument is out of range, the trainer has a `BatchSizeFinder`, loaders were passed, there
                is no attribute for the size, or the module cannot be searched for it; see `BatchSizeFinder`.
            MemoryError: If none of the sizes fits.
        """
        self._check(BatchSizeFinder, method, train_dataloaders, val_dataloaders, dataloaders)
        finder = self.batch_size_finder(mode, steps_per_trial, init_val, max_trials, batch_arg_name, margin, max_val)
        if method == "fit":
            loaders = {"train": train_dataloaders, "validate": val_dataloaders}
            search(self._trainer, [finder], VerbCall("fit", model, loaders, datamodule))
        else:
            self._search_in(method, finder, choose_module(method, model, None), dataloaders, datamodule)
        return finder.optimal_batch_size

    def _check(
        self, kind: type[Callback], method: str, train_dataloaders: Any, val_dataloaders: Any, dataloaders: Any
    ) -> None:
        """Raise `ValueError` if arguments contradict each other, or the trainer searches by itself or forks."""
        if getattr(self._trainer.strategy, "start_method", None) == "fork":
            rule, action = "None, or 'script', as what is found would stay in forks", "Search with one process."
            raise ValueError(must_be("start_method", rule, "fork", f"{_WHERE} of a trainer with several", action))
        if method not in get_args(Verb):
            rule = f"one of {', '.join(map(repr, get_args(Verb)))}"
            raise ValueError(must_be("method", rule, method, _WHERE, "Pass the verb whose batches are to be tried."))
        of_fit = {"train_dataloaders": train_dataloaders, "val_dataloaders": val_dataloaders}
        used, unused = (
            ("train_dataloaders", {"dataloaders": dataloaders}) if method == "fit" else ("dataloaders", of_fit)
        )
        for field, value in unused.items():
            if value is not None:
                raise ValueError(must_be(field, f"None with method={method!r}", value, _WHERE, f"Pass `{used}`."))
        own = next((callback for callback in self._trainer.callbacks if isinstance(callback, kind)), None)
        if own is not None:
            action = "Remove it, or let `fit` search."
            raise ValueError(must_be("callbacks", f"without a {kind.__name__}", own, _WHERE, action))

    def _search_in(self, verb: Verb, finder: BatchSizeFinder, module: Any, dataloaders: Any, datamodule: Any) -> None:
        """Search with short runs of an evaluating verb."""
        trainer, where = self._trainer, f"{_WHERE}.scale_batch_size"
        loaders, data = choose_data(verb, {verb: dataloaders}, datamodule, None)
        if loaders[verb] is not None:
            rule, action = "None or a data module", "Let module or data module make the loader, with the attribute."
            raise ValueError(must_be("dataloaders", rule, dataloaders, where, action))
        if trainer.world_size > 1:
            action = "Search with one process, or with method='fit'."
            raise ValueError(must_be("world_size", f"1 with method={verb!r}", trainer.world_size, where, action))
        if trainer.fast_dev_run:
            warn_user(f"{where} does not search under `fast_dev_run`. Leave that out to search.")
            return
        loop = {"validate": trainer.validate_loop, "test": trainer.test_loop, "predict": trainer.predict_loop}[verb]
        limit, keeps = loop.limit_batches, trainer.predict_loop.return_predictions

        def attempt(size: int) -> Trial:
            try:
                with running(trainer, VerbCall(verb, module, {verb: None}, data)) as run:
                    run_verb(run, loop)
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
            else:
                return Trial(True, is_whole_epoch=all(length_of(loader) <= 1 for loader in loop.loaders))
            free_memory()  # here, since the error no longer keeps the frames, and what is in them
            return Trial(False, ran_out=True)

        with _searching(trainer, [_OnlySetUp()]), loop.uncounted(), trainer.silenced(), isolated_randomness():
            loop.limit_batches = finder.steps_per_trial
            trainer.predict_loop.return_predictions = False
            try:
                finder.find([module, data], attempt)
            finally:
                loop.limit_batches = limit
                trainer.predict_loop.return_predictions = keeps


def search(trainer: Trainer, finders: Sequence[Callback], call: VerbCall) -> None:
    """Begin a fit in which finders search, and end it before its first epoch. Collective.

    Args:
        trainer: The trainer. Its callbacks, limits and progress are as before afterwards.
        finders: Callbacks that search in `on_fit_start`, in this order.
        call: Arguments of the fit.
    """
    beginning = _OnlySetUp(finders)
    try:
        with _searching(trainer, [beginning, *finders, _EndOfSearch()]), running(trainer, call) as run:
            run_verb(run, trainer.fit_loop)
    finally:
        if beginning.numbers is not None:
            restore_random_state(beginning.numbers)


@contextmanager
def _searching(trainer: Trainer, callbacks: list[Callback]) -> Iterator[None]:
    """Let a trainer have some callbacks before its own; restore these, limits and progress afterwards."""
    loop, own = trainer.fit_loop, trainer.callbacks
    progress, limits = loop.progress.state_dict(), loop.limits
    trainer.callbacks = [*callbacks, *own]
    try:
        yield
    finally:
        trainer.callbacks = own
        loop.limits = limits
        loop.progress.load_state_dict(progress)


class _OnlySetUp(Callback):
    """Leaves out the hooks of callbacks, but those of set-up and tear-down.

    Args:
        but: Callbacks whose hooks all run.

    Attributes:
        numbers: State of the random number generators when the first loader was requested; None if none was.
    """

    def __init__(self, but: Sequence[Callback] = ()) -> None:
        self._but = but
        self.numbers: dict[str, Any] | None = None

    def wrap_call(
        self, hook: str, kind: Receiver, receiver: object, function: Callable[..., Any]
    ) -> Callable[..., Any]:
        """Return the function, or one that does nothing in its place."""
        if hook.endswith("_dataloader"):
            return partial(self._request, function)
        is_of_search = kind != Receiver.CALLBACK or isinstance(receiver, _EndOfSearch) or receiver in self._but
        return function if is_of_search or hook in ("setup", "teardown", "on_exception") else no_op

    def _request(self, function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        if self.numbers is None:
            self.numbers = random_state()
        return function(*arguments, **keywords)


class _EndOfSearch(Callback):
    """Ends a fit before the first epoch."""

    def on_fit_start(self, trainer: Any, module: Any) -> None:
        """Set the limit to the current epoch."""
        loop = trainer.fit_loop
        done = loop.progress.current_epoch
        loop.limits = attrs.evolve(loop.limits, max_epochs=done, min_epochs=None, max_steps=-1, min_steps=None)
