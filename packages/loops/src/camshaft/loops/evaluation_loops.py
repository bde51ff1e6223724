"""The loops of the three verbs without gradients."""

from __future__ import annotations

from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor, nn

from camshaft.hooks_core.messages import must_be
from camshaft.hooks_core.protocols import Strategy
from camshaft.hooks_core.transfer import move_to_device
from camshaft.loops.evaluation import EvaluationLoop, StageHooks
from camshaft.loops.run import Run

_MISSING = object()


class ValidationLoop(EvaluationLoop):
    """Validation, as a verb or inside fit. Its result is the logged values, a dictionary per loader."""

    stage = "validate"
    limit_argument = "limit_val_batches"
    required = ("validation_step",)

    def stage_hooks(self, run: Run) -> StageHooks:
        """The validation hooks."""
        hooks = run.hooks.for_loaders(len(self.loaders))
        assert hooks.validation_step is not None
        return StageHooks(
            model_eval=hooks.on_validation_model_eval,
            start=hooks.on_validation_start,
            epoch_start=hooks.on_validation_epoch_start,
            batch_start=hooks.on_validation_batch_start,
            step=hooks.validation_step,
            batch_end=hooks.on_validation_batch_end,
            epoch_end=hooks.on_validation_epoch_end,
            end=hooks.on_validation_end,
            model_train=hooks.on_validation_model_train,
        )


class TestLoop(EvaluationLoop):
    """Test. Its result is the logged values, a dictionary per loader."""

    __test__ = False  # no test class, whatever pytest makes of its name

    stage = "test"
    limit_argument = "limit_test_batches"
    required = ("test_step",)

    def stage_hooks(self, run: Run) -> StageHooks:
        """The test hooks."""
        hooks = run.hooks.for_loaders(len(self.loaders))
        assert hooks.test_step is not None
        return StageHooks(
            model_eval=hooks.on_test_model_eval,
            start=hooks.on_test_start,
            epoch_start=hooks.on_test_epoch_start,
            batch_start=hooks.on_test_batch_start,
            step=hooks.test_step,
            batch_end=hooks.on_test_batch_end,
            epoch_end=hooks.on_test_epoch_end,
            end=hooks.on_test_end,
            model_train=hooks.on_test_model_train,
        )


class PredictLoop(EvaluationLoop):
    """Prediction. Its result is the predictions on the CPU: a list for one loader, a list of lists for several.

    A module without `predict_step` is called with the batch, as a step: through the strategy's `wrap_step`.

    With several processes each returns the predictions of its own batches, or those of all if they are gathered.

    Args:
        limit_batches: As in `EvaluationLoop`.
        inference_mode: As in `EvaluationLoop`.
        use_distributed_sampler: As in `EvaluationLoop`.
        gather: Whether every process returns the predictions of all processes, in the order in which one process makes
            them: that of the dataset, if the loader does not shuffle. They all have to fit into the memory of each.
            Of loaders that were not shared out, that is the first batches of all processes, then the second ones.

    Attributes:
        gather: The same; it counts when the predictions are returned.
        return_predictions: Whether there is a result at all; false keeps no predictions.
    """

    stage = "predict"
    limit_argument = "limit_predict_batches"
    gather: bool
    return_predictions: bool
    _predictions: list[list[Any]]
    _strategy: Strategy | None

    def __init__(
        self,
        *,
        limit_batches: int | float = 1.0,
        inference_mode: bool = True,
        use_distributed_sampler: bool = True,
        gather: bool = False,
    ) -> None:
        super().__init__(
            limit_batches=limit_batches,
            inference_mode=inference_mode,
            use_distributed_sampler=use_distributed_sampler,
        )
        self.gather = gather
        self.return_predictions = True
        self._predictions = []
        self._strategy = None

    def stage_hooks(self, run: Run) -> StageHooks:
        """The prediction hooks."""
        hooks, module = run.hooks.for_loaders(len(self.loaders)), run.module

        def call_module(batch: Any, batch_idx: int, dataloader_idx: int) -> Any:
            return module(batch)

        if hooks.predict_step is None and type(module).forward is nn.Module.forward:
            rule = "defined, or else `forward`, to predict"
            action = "Define one of the two."
            raise TypeError(must_be("predict_step", rule, None, type(module).__qualname__, action))
        return StageHooks(
            model_eval=hooks.on_predict_model_eval,
            start=hooks.on_predict_start,
            epoch_start=hooks.on_predict_epoch_start,
            batch_start=hooks.on_predict_batch_start,
            step=hooks.predict_step or run.strategy.wrap_step(call_module),
            batch_end=hooks.on_predict_batch_end,
            epoch_end=hooks.on_predict_epoch_end,
            end=hooks.on_predict_end,
            model_train=hooks.on_predict_model_train,
        )

    def run(self, run: Run) -> Any:
        """Predict. Collective. Returns the predictions, or None if `return_predictions` is false."""
        self._predictions, self._strategy = [], run.strategy
        run.predictions = self._predictions
        result = super().run(run)
        run.predictions = []
        return result

    def collect(self, outputs: Any, dataloader_idx: int) -> None:
        """Keep a prediction on the CPU."""
        if not self.return_predictions:
            return
        while len(self._predictions) <= dataloader_idx:
            self._predictions.append([])
        self._predictions[dataloader_idx].append(outputs if _is_plain_cpu(outputs) else _to_cpu(outputs))

    def result(self, metrics: list[dict[str, float]]) -> Any:
        """The predictions."""
        predictions, self._predictions = self._predictions, []
        if not self.return_predictions:
            return None
        predictions += [[] for _ in self.loaders[len(predictions) :]]
        strategy, self._strategy = self._strategy, None
        if self.gather and strategy is not None and strategy.num_data_ranks > 1:
            predictions = _of_all_ranks(predictions, strategy)
        return predictions[0] if len(predictions) == 1 else predictions


def _of_all_ranks(predictions: list[list[Any]], strategy: Strategy) -> list[list[Any]]:
    """The predictions of all processes: one batch of each in turn, as the batches were shared out. Collective."""
    by_rank = dict(strategy.all_gather((strategy.data_rank, predictions)))
    of_ranks = [by_rank[rank] for rank in sorted(by_rank)]
    in_turn = [zip_longest(*of_loader, fillvalue=_MISSING) for of_loader in zip(*of_ranks, strict=True)]
    return [[one for turn in turns for one in turn if one is not _MISSING] for turns in in_turn]


def _is_plain_cpu(outputs: Any) -> bool:
    return isinstance(outputs, Tensor) and outputs.is_cpu


def _to_cpu(outputs: Any) -> Any:
    return move_to_device(outputs, torch.device("cpu"))
