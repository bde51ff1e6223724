"""Validate with averaged weights, by a loop of one's own: `python examples/custom_evaluation_loop.py`."""

from typing import Any

import torch
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset, random_split

from camshaft.hooks_core import Callback
from camshaft.hooks_core.check import check
from camshaft.hooks_core.trace import Trace
from camshaft.loops import Run, ValidationLoop
from camshaft.trainer import Trainer
from k_fold import Digits


class AverageWeights(Callback):
    weights: Any = None  # a resumed fit has those of its checkpoint before `on_fit_start`

    def on_fit_start(self, trainer: Any, module: Any) -> None:
        begin = self.weights or module.state_dict()
        self.weights = {name: value.to(module.device, copy=True) for name, value in begin.items()}

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        for name, value in module.state_dict().items():
            if value.is_floating_point():  # not what counts something
                self.weights[name].lerp_(value, 0.02)

    def state_dict(self) -> Any:
        return self.weights

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.weights = state_dict


class AveragedValidationLoop(ValidationLoop):
    def run_epoch(self, run: Run, *arguments: Any, **options: Any) -> Any:
        average = next(callback for callback in run.callbacks if isinstance(callback, AverageWeights))
        trained = {name: value.clone() for name, value in run.module.state_dict().items()}
        run.module.load_state_dict(average.weights)
        try:
            return super().run_epoch(run, *arguments, **options)
        finally:
            run.module.load_state_dict(trained)  # training goes on with these, even after an error


if __name__ == "__main__":
    torch.manual_seed(0)
    pixels, labels = load_digits(return_X_y=True)
    dataset = TensorDataset(torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(labels))
    train, validation = random_split(dataset, [0.7, 0.3])
    train_batches, val_batches = DataLoader(train, batch_size=8, shuffle=True), DataLoader(validation, batch_size=256)
    trace = Trace()
    model, average = trace.record(Digits(learning_rate=0.02), "module"), trace.record(AverageWeights(), "callback")
    trainer = Trainer(max_epochs=8, callbacks=[average], logger=False, enable_checkpointing=False)
    trainer.fit_loop.validation = AveragedValidationLoop()
    trainer.fit(model, train_batches, val_batches)
    check(trace, "fit")  # every hook of the module and the callback was called at its moment
    print(f"accuracy with averaged weights: {trainer.callback_metrics['accuracy']:.2%}")
    print(f"accuracy with trained weights: {trainer.validate(model, val_batches, verbose=False)[0]['accuracy']:.2%}")
