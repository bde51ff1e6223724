"""What prediction returns."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from bare_parts import BareStrategy, BareTrainer, Net, Sized, Unsized, hooked, make_batches, seeded
from torch import nn

from camshaft.loops import PredictLoop


def predict(module: nn.Module, loaders: Any, **settings: Any) -> Any:
    return BareTrainer(module).verb("predict", PredictLoop(**settings), loaders)


def test_one_loader_gives_a_list_with_an_item_per_batch() -> None:
    net, batches = seeded(), make_batches(3)
    predictions = predict(net, Sized(batches))
    with torch.no_grad():
        assert all(torch.equal(one, net(x)) for one, (x, _) in zip(predictions, batches, strict=True))
    assert len(predictions) == 3


def test_several_loaders_give_a_list_of_such_lists() -> None:
    predictions = predict(seeded(), [Sized(make_batches(2)), Unsized(make_batches(1))])
    assert [len(of_loader) for of_loader in predictions] == [2, 1]


@pytest.mark.parametrize("counts", [(2, 0), (0, 2), (0, 0), (1, 0, 0)])
def test_loaders_without_batches_have_an_empty_list(counts: tuple[int, ...]) -> None:
    predictions = predict(seeded(), [Sized(make_batches(count)) for count in counts])
    assert [len(of_loader) for of_loader in predictions] == list(counts)


def test_one_loader_without_batches_gives_an_empty_list() -> None:
    assert predict(seeded(), Sized([])) == []


def test_predictions_of_any_nesting_are_on_the_cpu() -> None:
    class Nested(Net):
        def predict_step(self, batch: Any, batch_idx: int) -> Any:
            return {"pair": (self(batch[0]), 3), "text": "as it is"}

    (prediction,) = predict(Nested(), Sized(make_batches(1)))
    assert prediction["pair"][0].is_cpu
    assert (prediction["pair"][1], prediction["text"]) == (3, "as it is")


@pytest.mark.gpu
def test_predictions_on_a_device_come_to_the_cpu(accelerator: str) -> None:
    trainer = BareTrainer(seeded().to(accelerator))
    trainer.strategy.device = torch.device(accelerator)
    trainer.strategy.batch_to_device = lambda batch: tuple(tensor.to(accelerator) for tensor in batch)
    (prediction,) = trainer.verb("predict", PredictLoop(), Sized(make_batches(1)))
    assert prediction.is_cpu


def test_predictions_that_nobody_wants_are_not_kept() -> None:
    kept: list[int] = []
    loop = PredictLoop()
    loop.return_predictions = False
    callback = hooked(on_predict_batch_end=lambda *_: kept.append(len(loop._predictions)))
    trainer = BareTrainer(seeded(), callbacks=[callback])
    assert trainer.verb("predict", loop, Sized(make_batches(3))) is None
    assert kept == [0, 0, 0]


def test_a_second_prediction_does_not_return_the_first() -> None:
    loop, trainer = PredictLoop(), BareTrainer(seeded())
    assert len(trainer.verb("predict", loop, Sized(make_batches(3)))) == 3
    assert len(trainer.verb("predict", loop, Sized(make_batches(1)))) == 1


def test_a_prediction_after_one_that_failed_does_not_return_its_rest() -> None:
    class FailingOnce(Net):
        fails = True

        def predict_step(self, batch: Any, batch_idx: int) -> Any:
            if batch_idx == 1 and self.fails:
                raise ValueError("once")
            return batch_idx

    net, loop = FailingOnce(), PredictLoop()
    trainer = BareTrainer(net)
    with pytest.raises(ValueError, match="once"):
        trainer.verb("predict", loop, Sized(make_batches(2)))
    net.fails = False
    assert trainer.verb("predict", loop, Sized(make_batches(2))) == [0, 1]


def test_a_module_without_predict_step_is_called_with_the_batch() -> None:
    class OnlyForward(nn.Module):
        def forward(self, batch: Any) -> Any:
            return batch[0].sum()

    batches = make_batches(2)
    assert predict(OnlyForward(), Sized(batches)) == [batch[0].sum() for batch in batches]


class OneBatch(nn.Module):
    """Computes, and has no step."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1)

    def forward(self, batch: Any) -> Any:
        return self.layer(batch[0])


@pytest.mark.parametrize("module", [seeded(), OneBatch()])
def test_every_prediction_runs_in_the_context_of_the_strategy(module: nn.Module) -> None:
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    class Half(BareStrategy):
        num_wrapped = 0

        def wrap_step(self, step: Any) -> Any:
            self.num_wrapped += step.__name__ in ("predict_step", "call_module")

            def wrapped(*arguments: Any, **keywords: Any) -> Any:
                calls.append((arguments[1:], keywords))
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    return step(*arguments, **keywords)

            return wrapped

    trainer = BareTrainer(module, strategy=Half())
    loaders = [Sized(make_batches(2)), Sized(make_batches(1))]
    predictions = trainer.verb("predict", PredictLoop(), loaders)
    assert {prediction.dtype for of_loader in predictions for prediction in of_loader} == {torch.bfloat16}
    assert calls == [((0, 0), {}), ((1, 0), {}), ((0, 1), {})]
    assert trainer.strategy.num_wrapped == 1


def test_a_module_with_neither_is_an_error() -> None:
    class Neither(nn.Module):
        pass

    with pytest.raises(TypeError, match=r"`predict_step` must be defined, or else `forward`, to predict, .*Neither"):
        predict(Neither(), Sized(make_batches(1)))
