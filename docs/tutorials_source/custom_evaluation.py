"""
A custom evaluation
===================

Averaged weights are often better than those of the last step. This tutorial validates with them inside ``fit``, by a
validation loop of one's own, and leaves training as it is.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

from camshaft.hooks_core import Callback
from camshaft.hooks_core.check import check
from camshaft.hooks_core.trace import Trace
from camshaft.loops import ValidationLoop
from camshaft.trainer import Trainer, TrainingModule, seed_everything


class Digits(TrainingModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))

    def training_step(self, batch, batch_idx):
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def validation_step(self, batch, batch_idx):
        self.log("accuracy", (self.net(batch[0]).argmax(dim=1) == batch[1]).float().mean())

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.02)


# %%
# A callback that averages
# ------------------------
#
# After each update the average moves by 2% towards the weights. It is part of the checkpoints, so a resumed run has it
# before ``on_fit_start``.


class AverageWeights(Callback):
    def __init__(self):
        self.weights = None

    def on_fit_start(self, trainer, module):
        begin = self.weights or module.state_dict()
        self.weights = {name: value.to(module.device, copy=True) for name, value in begin.items()}

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        for name, value in module.state_dict().items():
            self.weights[name].lerp_(value, 0.02)

    def state_dict(self):
        return self.weights

    def load_state_dict(self, state_dict):
        self.weights = state_dict


# %%
# A loop that validates with them
# -------------------------------
#
# ``run_epoch`` goes over the loaders once. This one loads the average before, and the trained weights afterwards, also
# when a step raises. The ``Run`` that it is given holds the module and the callbacks.


class AveragedValidationLoop(ValidationLoop):
    def run_epoch(self, run, *arguments, **options):
        average = next(callback for callback in run.callbacks if isinstance(callback, AverageWeights))
        trained = {name: value.clone() for name, value in run.module.state_dict().items()}
        run.module.load_state_dict(average.weights)
        try:
            return super().run_epoch(run, *arguments, **options)
        finally:
            run.module.load_state_dict(trained)


class NoteAccuracy(Callback):
    def __init__(self):
        self.accuracies = []

    def on_train_epoch_end(self, trainer, module):
        self.accuracies.append(float(trainer.callback_metrics["accuracy"]))


# %%
# Use it
# ------
#
# ``trainer.fit_loop.validation`` is the loop that ``fit`` validates with. Assign yours before. The trace records every
# call, and ``check`` holds it against the life cycle: each hook was still called at its moment.

pixels, labels = load_digits(return_X_y=True)
dataset = TensorDataset(torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(labels))
train_set, val_set = random_split(dataset, [0.7, 0.3], torch.Generator().manual_seed(0))


folder = TemporaryDirectory()


def train(validation_loop, max_epochs=8, resume_from=None):
    seed_everything(0)
    trace, note = Trace(), NoteAccuracy()
    model, average = trace.record(Digits(), "module"), trace.record(AverageWeights(), "callback")
    options = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = Trainer(max_epochs=max_epochs, callbacks=[average, note], **options)
    trainer.fit_loop.validation = validation_loop
    loaders = DataLoader(train_set, batch_size=8, shuffle=True), DataLoader(val_set, batch_size=256)
    trainer.fit(model, *loaders, ckpt_path=resume_from)
    check(trace, "fit")
    trainer.save_checkpoint(Path(folder.name) / f"{max_epochs}.ckpt")
    return model, average, note.accuracies


model, average, averaged_accuracies = train(AveragedValidationLoop())
same_model, _, accuracies = train(ValidationLoop())
print(f"with averaged weights: {averaged_accuracies[-1]:.2%}")
print(f"with trained weights:  {accuracies[-1]:.2%}")
assert averaged_accuracies[-1] > accuracies[-1] > 0.9

# %%
# The two runs differ in what they measured alone. Their weights are the same, bit by bit:

for ours, plain in zip(model.state_dict().values(), same_model.state_dict().values(), strict=True):
    assert torch.equal(ours, plain)

figure, axes = plt.subplots(figsize=(8, 3.2), layout="constrained")
axes.plot(range(1, 9), averaged_accuracies, "o-", label="averaged weights")
axes.plot(range(1, 9), accuracies, "o-", label="trained weights")
axes.set(xlabel="epoch", ylabel="validation accuracy")
axes.yaxis.set_major_formatter("{x:.0%}")
axes.grid()
axes.legend()
plt.show()

# %%
# A run that stops after four epochs and is resumed has the same weights and the same average at the end:

train(AveragedValidationLoop(), max_epochs=4)
resumed_model, resumed_average, _ = train(AveragedValidationLoop(), resume_from=Path(folder.name) / "4.ckpt")
for name, value in model.state_dict().items():
    assert torch.equal(resumed_model.state_dict()[name], value)
    assert torch.equal(resumed_average.weights[name], average.weights[name])

# %%
# The stock callback ``EMAWeightAveraging`` averages weights without a loop of one's own. What a loop adds is a
# validation that does anything you like: other weights, several passes, a simulation in place of batches.
