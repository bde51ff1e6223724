"""
Our loops on a strategy of one's own
====================================

A strategy says where and how a training step computes: devices, processes, precision, how gradients come together. The
loops of ``camshaft-loops`` run on any object that follows the protocol. This tutorial writes one for an experiment:
gradients of which only the largest twentieth is applied at each update, as if the rest were too expensive to send.
"""

from tempfile import TemporaryDirectory

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

from camshaft.hooks_core import Callback, ModelHooks, StrategyDefaults
from camshaft.loops import FitLimits, FitLoop, PredictLoop, Run, run_verb
from camshaft.strategies import conformance

# %%
# The least that a strategy needs
# -------------------------------
#
# ``StrategyDefaults`` has every method of the protocol, for one process with tensors in 32 bits. What is left is the
# device.


class OneDevice(StrategyDefaults):
    def __init__(self, device="cpu"):
        self.device = torch.device(device)


# %%
# A kit tries the promises of the protocol, from moving batches to resuming from checkpoints, and compares training
# with a loop in plain torch.

with TemporaryDirectory() as folder:
    report = conformance.run(OneDevice, folder)
print(f"{len(report.outcomes) - len(report.failed)} of {len(report.outcomes)} checks passed, such as")
print("\n".join(str(report).splitlines()[-4:]))
assert report.passed

# %%
# One that does something else
# ----------------------------
#
# ``backward`` differentiates. ``set_gradient_sync(False)`` announces steps whose gradients are only accumulated:
# there is nothing to send then. What is not sent is not lost: it is added to the next gradient.


class SparseGradients(OneDevice):
    """Applies the largest entries of each gradient, and keeps the others for later updates.

    Args:
        share: Share of the entries that are applied.
    """

    def __init__(self, share):
        super().__init__()
        self.share, self.num_sent, self.is_synchronised = share, 0, True
        self.kept = {}

    def setup_module(self, module):
        module = super().setup_module(module)
        self.kept = {parameter: torch.zeros_like(parameter) for parameter in module.parameters()}
        return module

    def set_gradient_sync(self, is_on):
        self.is_synchronised = is_on

    def backward(self, loss, differentiate=None):
        super().backward(loss, differentiate)
        if self.is_synchronised:
            for parameter, kept in self.kept.items():
                self.sparsify(parameter.grad, kept)

    def sparsify(self, gradient, kept):
        wanted = gradient + kept
        num_applied = max(1, round(self.share * wanted.numel()))
        threshold = wanted.abs().flatten().topk(num_applied).values[-1]
        gradient.copy_(torch.where(wanted.abs() >= threshold, wanted, 0))
        kept.copy_(wanted - gradient)
        self.num_sent += int(gradient.count_nonzero())


# %%
# Train with the loops
# --------------------
#
# No trainer is involved. A ``Run`` names the parts: module, strategy, loaders, callbacks, and the object that callbacks
# are told as ``trainer``. ``run_verb`` runs a loop with them.


class Digits(ModelHooks, nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))

    def training_step(self, batch, batch_idx):
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def predict_step(self, batch, batch_idx):
        return self.net(batch[0]).argmax(dim=1) == batch[1]

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.2)


class NoteLosses(Callback):
    def __init__(self):
        self.losses = []

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.losses.append(float(outputs["loss"]))


pixels, labels = load_digits(return_X_y=True)
dataset = TensorDataset(torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(labels))
training, held_out = random_split(dataset, [0.8, 0.2], torch.Generator().manual_seed(0))


def train(strategy):
    torch.manual_seed(0)
    module, note, fit, predict = Digits(), NoteLosses(), FitLoop(FitLimits(max_epochs=10)), PredictLoop()
    loaders = {"train": DataLoader(training, batch_size=32, shuffle=True)}
    parts = {"module": module, "strategy": strategy, "callbacks": [note]}
    run_verb(Run(verb="fit", trainer=fit, loaders=loaders, **parts), fit)
    loaders = {"predict": DataLoader(held_out, batch_size=100)}
    is_right = run_verb(Run(verb="predict", trainer=predict, loaders=loaders, **parts), predict)
    accuracy = torch.cat(is_right).float().mean()
    print(f"{type(strategy).__name__:15} {fit.progress.global_step} updates, accuracy {accuracy:.1%}")
    return note.losses, accuracy


sparse = SparseGradients(share=0.05)
losses, accuracy = train(OneDevice())
sparse_losses, sparse_accuracy = train(sparse)
num_entries = len(losses) * sum(parameter.numel() for parameter in Digits().parameters())
print(f"{sparse.num_sent / num_entries:.1%} of the entries of all gradients were applied")
assert 0.04 < sparse.num_sent / num_entries < 0.06
assert accuracy > 0.9 and sparse_accuracy > 0.9

# %%
# A twentieth of each gradient at a time trains nearly as well:

figure, axes = plt.subplots(figsize=(8, 3.2), layout="constrained")
for name, values in (("whole gradients", losses), ("5% of each gradient", sparse_losses)):
    smooth = torch.tensor(values).unfold(0, 15, 1).mean(dim=1)
    axes.plot(smooth, label=name)
axes.set(xlabel="update", ylabel="loss, mean of 15", yscale="log")
axes.grid()
axes.legend()
plt.show()

# %%
# The same object goes into the trainer: ``Trainer(strategy=SparseGradients(share=0.05))``. A strategy of several
# processes also sets ``global_rank``, ``local_rank`` and ``world_size``, and defines ``all_gather``:
# :repository:`examples/strategy_torch.py` does so in a page, :repository:`examples/strategy_accelerate.py` and
# :repository:`examples/strategy_fabric.py` adapt other libraries.
