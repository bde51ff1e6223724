"""The verb that predicts."""

from __future__ import annotations

import os
from typing import Any

from camshaft.loops import run_verb
from camshaft.trainer.running import VerbRunner


class Predicting(VerbRunner):
    """The part of a trainer that predicts."""

    def predict(
        self,
        model: Any = None,
        dataloaders: Any = None,
        datamodule: Any = None,
        return_predictions: bool | None = None,
        ckpt_path: str | os.PathLike[str] | None = None,
        weights_only: bool | None = None,
        *,
        gather: bool = False,
    ) -> Any:
        """Predict every batch. Collective.

        Args:
            model: The module; None as in `validate`.
            dataloaders: A loader, or a list of them; None asks the data module, then the module.
            datamodule: A data module.
            return_predictions: Whether to keep and return the predictions; if false, memory does not grow. None means
                true.
            ckpt_path: A checkpoint whose weights to use: a path, "best" or "last".
            weights_only: As in `fit`.
            gather: Whether each of several processes returns the predictions of all, in the order of the dataset, and
                not those of its own batches.

        Returns:
            The predictions on the CPU: a list with an item per batch, or a list of such lists for several loaders; None
            if they are not wanted.
        """
        self.predict_loop.return_predictions = return_predictions is None or return_predictions
        self.predict_loop.gather = gather
        with self._running("predict", model, {"predict": dataloaders}, datamodule, ckpt_path, weights_only) as run:
            return run_verb(run, self.predict_loop)
