"""
A loop of one's own, certified
==============================

``camshaft-hooks-core`` is for people who write their own training loop. It gives the loop callbacks, checks them before
the first batch, and proves that every hook is called at its moment. It knows nothing of torch: this loop trains a NumPy
model.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

from camshaft.hooks_core import Callback, ModelHooks, resolve
from camshaft.hooks_core.conformance import Adapter, certify
from camshaft.hooks_core.spec import SKIP_EPOCH

# %%
# A model
# -------
#
# Softmax regression. ``training_step`` returns the loss; the model differentiates in ``backward`` and updates in
# ``optimizer_step``, which calls the closure that it is given: forward and backward.


class SoftmaxRegression(ModelHooks):
    def __init__(self):
        self.weights = np.zeros((64, 10))

    def probabilities(self, images):
        powers = np.exp(images @ self.weights)
        return powers / powers.sum(axis=1, keepdims=True)

    def training_step(self, batch, batch_idx):
        self.images, self.labels = batch
        self.guesses = self.probabilities(self.images)
        return -float(np.log(self.guesses[np.arange(len(self.labels)), self.labels]).mean())

    def backward(self, loss):
        errors = self.guesses - np.eye(10)[self.labels]
        self.gradient = self.images.T @ errors / len(self.labels)

    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure=None):
        if optimizer_closure() is not None:
            self.weights -= 0.5 * self.gradient


# %%
# A loop
# ------
#
# ``resolve`` checks the receivers and turns every hook into one function. The loop then calls plain functions, and
# knows nothing of who listens. This is a first try:


def fit(module, batches, callbacks=(), num_epochs=1):
    hooks = resolve(callbacks=callbacks, module=module, required=["training_step", "backward", "optimizer_step"])
    hooks.prepare_data()
    hooks.setup("fit")
    hooks.configure_sharded_model()
    hooks.configure_model()
    hooks.on_fit_start()
    hooks.on_train_start()
    for epoch in range(num_epochs):
        hooks.on_train_epoch_start()
        for batch_idx, batch in enumerate(batches):
            hooks.on_train_batch_start(batch, batch_idx)
            loss = train_batch(hooks, epoch, batch, batch_idx)
            hooks.on_train_batch_end(loss, batch, batch_idx)
        hooks.on_train_epoch_end()
    hooks.on_train_end()
    hooks.on_fit_end()
    hooks.teardown("fit")


def train_batch(hooks, epoch, batch, batch_idx):
    losses = []

    def closure():
        hooks.on_before_zero_grad(None)
        loss = hooks.training_step(batch, batch_idx)
        losses.append(loss)
        if loss is not None:
            hooks.on_before_backward(loss)
            hooks.backward(loss)
            hooks.on_after_backward()
            hooks.on_before_optimizer_step(None)
        return loss

    hooks.optimizer_step(epoch, batch_idx, None, closure)
    return losses[0]


# %%
# It trains. A callback for it is a callback for any other trainer of the protocol.


class NoteLosses(Callback):
    def __init__(self):
        self.losses = []

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.losses.append(outputs)


pixels, labels = load_digits(return_X_y=True)
order = np.random.default_rng(0).permutation(len(labels))
images, labels = pixels[order] / 16, labels[order]
batches = [(images[start : start + 32], labels[start : start + 32]) for start in range(0, 1408, 32)]


def train(fit):
    model, note = SoftmaxRegression(), NoteLosses()
    fit(model, batches, [note], num_epochs=5)
    accuracy = (model.probabilities(images[1408:]).argmax(axis=1) == labels[1408:]).mean()
    print(f"accuracy on the {len(images) - 1408} others: {accuracy:.1%}")
    assert accuracy > 0.9
    return note.losses


losses = train(fit)

# %%
# Is it right?
# ------------
#
# It trains, and yet a callback that relies on the protocol may fail in it. The conformance kit runs the loop through
# small scenarios, records every call, and names the first one that departs from the life cycle. An adapter tells the
# kit how to run the loop; ``features`` are what the loop claims to do beyond the plain case.


def report_on(fit, features):
    def run(scenario, module, callbacks):
        some_batches = batches[: scenario.num_batches]
        fit(module, some_batches, callbacks, scenario.num_epochs)

    return certify(Adapter(run, make_module=SoftmaxRegression), verbs=["fit"], features=features)


report = report_on(fit, features=["skip_update"])
failures = [outcome for outcome in report.outcomes if outcome.error is not None]
print(failures[0].error)
assert not report.passed
assert failures[0].error.hook == "on_before_zero_grad"

# %%
# The loop zeroes gradients before ``training_step``; in the protocol that comes after it, right before backward.
# (Lightning 2.x does as this loop does: ``zero_grad="before_training_step"``, passed to ``certify``, holds a loop to
# that place.)
#
# Mend it
# -------
#
# The second version moves the call. It also does what a complete loop does: it ends an epoch when
# ``on_train_batch_start`` returns -1, and when a hook raises it tells the receivers, cleans up, and raises the same
# error.


def better_fit(module, batches, callbacks=(), num_epochs=1):
    hooks = resolve(callbacks=callbacks, module=module, required=["training_step", "backward", "optimizer_step"])
    try:
        hooks.prepare_data()
        hooks.setup("fit")
        hooks.configure_sharded_model()
        hooks.configure_model()
        hooks.on_fit_start()
        hooks.on_train_start()
        for epoch in range(num_epochs):
            hooks.on_train_epoch_start()
            for batch_idx, batch in enumerate(batches):
                if hooks.on_train_batch_start(batch, batch_idx) == SKIP_EPOCH:
                    break
                loss = better_train_batch(hooks, epoch, batch, batch_idx)
                hooks.on_train_batch_end(loss, batch, batch_idx)
            hooks.on_train_epoch_end()
        hooks.on_train_end()
        hooks.on_fit_end()
    except BaseException as error:
        hooks.on_exception(error)
        raise
    finally:
        hooks.teardown("fit")


def better_train_batch(hooks, epoch, batch, batch_idx):
    losses = []

    def closure():
        loss = hooks.training_step(batch, batch_idx)
        losses.append(loss)
        if loss is not None:
            hooks.on_before_zero_grad(None)
            hooks.on_before_backward(loss)
            hooks.backward(loss)
            hooks.on_after_backward()
            hooks.on_before_optimizer_step(None)
        return loss

    hooks.optimizer_step(epoch, batch_idx, None, closure)
    return losses[0]


features = ["skip_epoch", "skip_epoch_by_callback", "skip_update", "exceptions", "monitoring", "after_module"]
report = report_on(better_fit, features)
print("\n".join(str(report).splitlines()[: len(report.outcomes)]))
assert report.passed and len(report.outcomes) == 9

# %%
# This loop has no validation and no gradient accumulation, so it does not claim them, and the kit leaves their
# scenarios out. It trains as before:

better_losses = train(better_fit)
assert better_losses == losses

figure, axes = plt.subplots(figsize=(8, 3), layout="constrained")
axes.plot(better_losses, linewidth=1)
axes.set(xlabel="update", ylabel="cross-entropy", yscale="log")
axes.grid()
plt.show()

# %%
# In a test suite, the pytest fixture ``conformance_scenario`` runs a test once for each scenario.
# :repository:`examples/custom_trainer.py` is a loop in torch with accumulation, checkpoints and the stock callbacks,
# and :doc:`/how-it-works/certified-trainers` shows where eight other frameworks stand.
