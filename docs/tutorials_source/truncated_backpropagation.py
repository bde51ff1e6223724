"""
Truncated backpropagation through time
======================================

A recurrent network that is trained on long sequences keeps the graph of each whole sequence in memory. Truncated
backpropagation cuts a sequence into splits: gradients go back through one split, and the hidden state goes on to the
next. It takes one attribute of the module and one argument of ``training_step``.
"""

from pydoc_data.topics import topics

import matplotlib.pyplot as plt
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

from camshaft.hooks_core import Callback
from camshaft.trainer import Trainer, TrainingModule, seed_everything

# %%
# The text
# --------
#
# What Python's ``help()`` says about the language, as sequences of 512 characters. The target of each character is the
# one that follows it.

text = "\n\n".join(topics[name] for name in sorted(topics))[:100_000]
vocabulary = sorted(set(text))
characters = torch.tensor([vocabulary.index(character) for character in text])
sequences = characters.unfold(0, 513, 512)
dataset = TensorDataset(sequences[:, :-1], sequences[:, 1:])
training, held_out = random_split(dataset, [0.9, 0.1], torch.Generator().manual_seed(0))
print(f"{len(training)} sequences to train on, {len(held_out)} held out; {len(vocabulary)} different characters")

# %%
# The model
# ---------
#
# The trainer reads ``truncated_bptt_steps`` and splits every batch along time, dimension 1 of its tensors. It calls
# ``training_step`` once for each split. ``hiddens`` is None in a batch's first split; later it is what the step before
# returned under that name, without its graph. Each split makes an update.


class Characters(TrainingModule):
    def __init__(self, truncated_bptt_steps):
        super().__init__()
        self.truncated_bptt_steps = truncated_bptt_steps  # 0: sequences stay whole
        self.embedding = nn.Embedding(len(vocabulary), 32)
        self.gru = nn.GRU(32, 64, batch_first=True)
        self.head = nn.Linear(64, len(vocabulary))

    def forward(self, inputs, targets, hiddens=None):
        outputs, hiddens = self.gru(self.embedding(inputs), hiddens)
        return nn.functional.cross_entropy(self.head(outputs).flatten(0, 1), targets.flatten()), hiddens

    def training_step(self, batch, batch_idx, hiddens):
        loss, hiddens = self(*batch, hiddens)
        return {"loss": loss, "hiddens": hiddens}

    def validation_step(self, batch, batch_idx):  # whole sequences: without gradients there is no graph
        loss, _ = self(*batch)
        self.log("val_loss", loss)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=3e-3)


# %%
# Measure what a graph holds
# --------------------------
#
# Torch tells which tensors it saves for backward. This callback adds up their bytes between two backward passes, and
# keeps the largest sum.


class MeasureGraph(Callback):
    def __init__(self):
        self.num_bytes = self.peak_bytes = 0
        self.perplexities = []

    def on_train_start(self, trainer, module):
        def note(tensor):
            self.num_bytes += tensor.numel() * tensor.element_size()
            self.peak_bytes = max(self.peak_bytes, self.num_bytes)
            return tensor

        self.saved_tensors = torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor)
        self.saved_tensors.__enter__()

    def on_after_backward(self, trainer, module):
        self.num_bytes = 0  # backward has freed them

    def on_train_epoch_end(self, trainer, module):
        self.perplexities.append(float(trainer.callback_metrics["val_loss"].exp()))

    def on_train_end(self, trainer, module):
        self.saved_tensors.__exit__(None, None, None)


def train(truncated_bptt_steps):
    seed_everything(0)
    measure = MeasureGraph()
    options = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = Trainer(max_epochs=4, gradient_clip_val=1.0, callbacks=[measure], **options)
    loaders = DataLoader(training, batch_size=16, shuffle=True), DataLoader(held_out, batch_size=32)
    trainer.fit(Characters(truncated_bptt_steps), *loaders)
    name = f"splits of {truncated_bptt_steps}" if truncated_bptt_steps else "whole sequences"
    print(f"{name:15}  {trainer.global_step:3} updates,  {measure.peak_bytes / 2**20:4.1f} MiB saved for backward")
    return measure, trainer.global_step


split, num_split_updates = train(64)
whole, num_whole_updates = train(0)

# %%
# A split is an eighth of a sequence. So its graph is about an eighth of the size, and the same characters make eight
# times as many updates.

assert 7 < whole.peak_bytes / split.peak_bytes < 9
assert num_split_updates == 8 * num_whole_updates

# %%
# Memory no longer depends on the length of the sequences. After the same number of characters, the network with more
# updates has learned more: perplexity is the number of characters among which it is as good as guessing.

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained", width_ratios=(2, 1))
epochs = range(1, 5)
left.plot(epochs, split.perplexities, "o-", label="splits of 64")
left.plot(epochs, whole.perplexities, "o-", label="whole sequences")
left.set(xlabel="epoch", ylabel="held-out perplexity", xticks=epochs, yscale="log", yticks=(8, 10, 15, 20, 30))
left.yaxis.set_major_formatter("{x:.0f}")
left.minorticks_off()
left.grid()
left.legend()
sizes = [measure.peak_bytes / 2**20 for measure in (split, whole)]
right.bar(["splits\nof 64", "whole\nsequences"], sizes, color=["C0", "C1"], width=0.6)
right.set_ylabel("MiB saved for backward")
plt.show()
assert split.perplexities[-1] < whole.perplexities[-1]

# %%
# What truncation costs: no gradient goes further back than a split, so what depends on more than 64 characters is
# learned through the hidden state alone. Batches that are no tensors of (batch, time) are cut by
# ``tbptt_split_batch(batch, split_size)``, which a module may override.
