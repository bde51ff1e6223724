"""What surrounds a step."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from camshaft.strategies.conformance.life import Life, Reference, whole
from camshaft.strategies.conformance.subject import STEPS, Subject, global_batch, share_of
from camshaft.strategies.conformance.trial import Trial


class Answering(Subject):
    """Its steps return all that they were given and know."""

    marker = object()

    def _answer(self, name: str, batch: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        modes = {
            "training": self.training,
            "grad": torch.is_grad_enabled(),
            "inference": torch.is_inference_mode_enabled(),
        }
        inputs = batch["inputs"]
        answer = {"step": name, "args": args, "kwargs": kwargs, "modes": modes, "marker": self.marker}
        return answer | {
            "loss": self(inputs).square().mean(),
            "nested": [inputs, (None, {"ones": torch.ones_like(inputs, dtype=torch.int64)})],
        }

    def training_step(self, batch: Any, *args: Any, **kwargs: Any) -> Any:
        return self._answer("training_step", batch, *args, **kwargs)

    def validation_step(self, batch: Any, *args: Any, **kwargs: Any) -> Any:
        return self._answer("validation_step", batch, *args, **kwargs)

    def test_step(self, batch: Any, *args: Any, **kwargs: Any) -> Any:
        return self._answer("test_step", batch, *args, **kwargs)

    def predict_step(self, batch: Any, *args: Any, **kwargs: Any) -> Any:
        return self._answer("predict_step", batch, *args, **kwargs)


def steps_pass_arguments_and_results_through(trial: Trial) -> None:
    """Wrapped steps of all stages get every argument as it is, by position or name, and return what the step does."""
    marker = Answering.marker
    with Life(trial, Answering()) as life:
        for batch_idx, name in enumerate(STEPS):
            life.module.eval()
            batch = life.share(batch_idx)
            with torch.no_grad():
                result = life.steps[name](batch, batch_idx, dataloader_idx=1, extra=marker)
            if not trial.expect(
                type(result) is dict, f"the result of `{name}` must be its dictionary", f"got {result}"
            ):
                continue
            trial.expect_equal(result["step"], name, "the step that a wrapped step runs")
            trial.expect_equal(result["args"], (batch_idx,), f"positional arguments of `{name}`")
            trial.expect_equal(list(result["kwargs"]), ["dataloader_idx", "extra"], f"keyword arguments of `{name}`")
            objects = result["marker"] is marker and result["kwargs"]["extra"] is marker
            trial.expect(objects, f"objects must go through `{name}` as they are", f"got {result['marker']}")
            _expect_nested(trial, result["nested"], whole(batch["inputs"]), name)
            loss = Subject()(whole(batch["inputs"])).square().mean()
            trial.expect_close({name: result["loss"].cpu()}, {name: loss}, "the loss of")


def steps_see_the_modes_of_their_caller(trial: Trial) -> None:
    """A wrapped step runs in the train or evaluation mode and the gradient mode that its caller set."""
    with Life(trial, Answering()) as life:
        for name in STEPS:
            for training, context in (
                (False, torch.no_grad()),
                (False, torch.inference_mode()),
                (True, torch.no_grad()),
            ):
                life.module.train(training)
                with context:
                    expected = _modes(training)
                    result = life.steps[name](life.share(0), 0)
                trial.expect_equal(result["modes"], expected, f"the modes in which `{name}` runs")
        life.module.train()
        result = life.steps["training_step"](life.share(0), 0)
        trial.expect_equal(result["modes"], _modes(True), "the modes in which `training_step` runs")
        requires = result["loss"].requires_grad
        trial.expect(requires, "the loss of `training_step` must require gradients", "it does not")
        life.strategy.backward(result["loss"])


def evaluation_may_end_on_one_rank_before_another(trial: Trial) -> None:
    """Ranks evaluate different numbers of batches; `idle_step` answers the others' steps, and training goes on."""
    with Life(trial, Subject()) as life:
        reference = Reference(life.strategy.num_data_ranks)
        life.update(0)
        reference.update(0)
        num_own, num_most = 1 + life.data_rank, life.strategy.num_data_ranks
        life.module.eval()
        for name in STEPS[1:]:
            with torch.inference_mode():
                for batch_idx in range(num_own):
                    share = share_of(global_batch(batch_idx, num_most), life.data_rank, num_most)
                    output = life.steps[name](life.share(batch_idx), batch_idx)
                    trial.expect_close({name: output.cpu()}, {name: reference.module(share["inputs"])}, "the output of")
                for _ in range(num_most - num_own):
                    life.strategy.idle_step()
        if num_most == 1:  # nobody to answer, and nothing to change by it
            with torch.inference_mode():
                life.strategy.idle_step()
        life.update(1)
        reference.update(1)
        weights = life.weights()
        trial.expect_close(weights, reference.weights(), "after evaluation and an update,")
        trial.expect_same_everywhere(weights, "weights after evaluation and an update")


def _modes(training: bool) -> dict[str, bool]:
    grad, inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
    return {"training": training, "grad": grad, "inference": inference}


def _expect_nested(trial: Trial, nested: Any, inputs: Tensor, name: str) -> None:
    """The structure is as it was; floating-point tensors may be of another precision."""
    form = [type(nested), type(nested[1]), nested[1][0], type(nested[1][1])]
    trial.expect_equal(form, [list, tuple, None, dict], f"the containers in the result of `{name}`")
    trial.expect_close({"inputs": nested[0].cpu()}, {"inputs": inputs}, f"in the result of `{name}`,")
    ones = nested[1][1]["ones"].cpu()
    trial.expect_equal(ones, torch.ones_like(inputs, dtype=torch.int64), f"integers in the result of `{name}`")
