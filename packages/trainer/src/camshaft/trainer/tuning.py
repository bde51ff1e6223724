"""Searching a learning rate or a batch size without training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

import camshaft.callbacks as callbacks
from camshaft.hooks_core import Callback
from camshaft.hooks_core.messages import must_be
from camshaft.loops import run_verb
from camshaft.trainer.earlier.argument_translation import EarlierSettings
from camshaft.trainer.earlier.calls import given_loaders
from camshaft.trainer.running import VerbRunner
from camshaft.trainer.silent_logger import SilentLogger

_LR_FIND: Mapping[str, str] = {"num_training": "num_training_steps"}
_SCALE_BATCH_SIZE: Mapping[str, str] = {}
"""Names that options of the searches had in earlier releases, with today's."""


class Tuning(VerbRunner):
    """The part of a trainer that searches what `auto_lr_find` and `auto_scale_batch_size` asked for.

    Attributes:
        tuning: Whether it is searching.
    """

    _earlier: EarlierSettings
    tuning: bool = False

    def tune(
        self,
        model: Any,
        train_dataloaders: Any = None,
        val_dataloaders: Any = None,
        datamodule: Any = None,
        scale_batch_size_kwargs: Mapping[str, Any] | None = None,
        lr_find_kwargs: Mapping[str, Any] | None = None,
        **earlier: Any,
    ) -> dict[str, Any]:
        """Search a batch size, then a learning rate, and set what was found; nothing is trained. Collective.

        Callbacks of the trainer are not called, and loggers write nothing.

        Args:
            model: The module.
            train_dataloaders: As in `fit`; a search for the batch size asks module or data module again and again.
            val_dataloaders: As in `fit`.
            datamodule: A data module.
            scale_batch_size_kwargs: Options of `BatchSizeFinder`.
            lr_find_kwargs: Options of `LearningRateFinder`.
            earlier: `train_dataloader`, a name that `train_dataloaders` had.

        Returns:
            What was found: the size as "scale_batch_size", the `LearningRateCurve` as "lr_find".

        Raises:
            RuntimeError: If the trainer was made with neither `auto_lr_find` nor `auto_scale_batch_size`.
            TypeError, ValueError, MemoryError: As the finders and `fit`.
        """
        size = _with_options(self._earlier.scale_batch_size, scale_batch_size_kwargs, _SCALE_BATCH_SIZE)
        rate = _with_options(self._earlier.lr_find, lr_find_kwargs, _LR_FIND)
        if size is None and rate is None:
            rule = "made with `auto_lr_find` or `auto_scale_batch_size`"
            action = "Pass one of them, or add a finder to the callbacks of a fit."
            raise RuntimeError(must_be("trainer", rule, None, "Trainer.tune", action))
        loaders = given_loaders("fit", {"train": train_dataloaders, "validate": val_dataloaders}, earlier)
        attached, loggers = self.callbacks, self._loggers
        progress, limits = self.fit_loop.progress.state_dict(), self.fit_loop.limits
        finders = [finder for finder in (size, rate) if finder is not None]
        self.callbacks, self._loggers = [*finders, _EndOfSearch()], [SilentLogger() for _ in loggers]
        self.tuning = True
        try:
            with self._running("fit", model, loaders, datamodule, None, None) as run:
                run_verb(run, self.fit_loop)
        finally:
            self.tuning = False
            self.callbacks, self._loggers = attached, loggers
            self.fit_loop.limits = limits
            self.fit_loop.progress.load_state_dict(progress)
        found = {
            "scale_batch_size": None if size is None else size.optimal_batch_size,
            "lr_find": None if rate is None else rate.optimal_lr,
        }
        return {name: value for name, value in found.items() if value is not None}


class _EndOfSearch(Callback):
    """Lets no epoch begin."""

    def on_fit_start(self, trainer: Any, module: Any) -> None:
        """Reach the limit."""
        loop = trainer.fit_loop
        loop.limits = attrs.evolve(
            loop.limits, max_epochs=loop.progress.current_epoch, min_epochs=None, max_steps=-1, min_steps=None
        )


def _with_options(finder: Any, options: Mapping[str, Any] | None, names: Mapping[str, str]) -> Any:
    """A finder of the same kind with other options, under the names that they had in earlier releases."""
    if finder is None or not options:
        return finder
    kind = type(finder)
    own = {"attr_name": finder.attr_name} if kind is callbacks.LearningRateFinder else {"mode": finder.mode}
    return kind(**{**own, **{names.get(name, name): value for name, value in options.items()}})
