"""
Finding what is slow
====================

``HookTimeline`` times every hook of every receiver, and the waiting for batches between them. It writes a page to read,
and a trace for Perfetto. This tutorial slows a run down in two places, and finds both.
"""

import json
import time
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, Dataset

from camshaft.callbacks import HookTimeline
from camshaft.hooks_core import Callback
from camshaft.trainer import Trainer, TrainingModule, seed_everything

# %%
# A run with two mistakes
# -----------------------
#
# The dataset prepares an image again whenever it is asked for, and a callback writes a report after every batch. The
# sleeps stand for the work.


class SlowDigits(Dataset):
    def __init__(self):
        pixels, labels = load_digits(return_X_y=True)
        self.images = torch.tensor(pixels / 16, dtype=torch.float32)
        self.labels = torch.tensor(labels)

    def __len__(self):
        return 640

    def __getitem__(self, idx):
        time.sleep(0.0005)
        return self.images[idx], self.labels[idx]


class WriteReport(Callback):
    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        time.sleep(0.03)


class Digits(TrainingModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))

    def training_step(self, batch, batch_idx):
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())


# %%
# Record it
# ---------
#
# It takes one callback. A run without it pays nothing.


def record(dataset, report, folder):
    seed_everything(0, verbose=False)
    timeline = HookTimeline(folder)
    options = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = Trainer(max_epochs=3, callbacks=[report, timeline], enable_model_summary=False, **options)
    trainer.fit(Digits(), DataLoader(dataset, batch_size=32))
    return json.loads(Path(timeline.json_path).read_text())["traceEvents"]


with TemporaryDirectory() as folder:
    events = record(SlowDigits(), WriteReport(), folder)
    print(*sorted(path.name for path in Path(folder).iterdir()), sep="\n")

# %%
# Read it
# -------
#
# Open ``timeline-rank0.html`` in a browser. It lists the time of each hook and receiver, percentiles of batches, and
# the life cycle with its times; "self" is the time of a call without the hooks inside it. It needs no network.
#
# ``timeline-rank0.json`` has every call. Open it at ``ui.perfetto.dev``, or read it in a program, as here. Durations
# are in microseconds. An epoch consists of its batches and of waiting for them.


def summarize(events):
    seconds = Counter()
    for event in events:
        if event["ph"] == "X":
            seconds[event["name"]] += event["dur"] / 1e6
    return {
        "waiting for batches": seconds["training epoch"] - seconds["training batch"],
        "on_train_batch_end of WriteReport": seconds["on_train_batch_end · WriteReport"],
        "training_step of Digits": seconds["training_step · Digits"],
        "backward pass": seconds["backward pass"],
        "optimizer.step": seconds["optimizer.step · Adam"],
    }


slow = summarize(events)
assert slow["waiting for batches"] > 60 * 32 * 0.0005  # 60 batches of 32 images
assert slow["on_train_batch_end of WriteReport"] > 60 * 0.03

# %%
# Mend it
# -------
#
# The images are prepared once, and the report is written after each epoch.


class Prepared(SlowDigits):
    def __getitem__(self, idx):
        return self.images[idx], self.labels[idx]


class WriteReportOnce(Callback):
    def on_train_epoch_end(self, trainer, module):
        time.sleep(0.03)


with TemporaryDirectory() as folder:
    mended_events = record(Prepared(), WriteReportOnce(), folder)
mended = summarize(mended_events)


def num_calls(events, receiver):
    return sum(event.get("args", {}).get("receiver") == receiver for event in events)


print("reports written before:", num_calls(events, "WriteReport"))
print("reports written after: ", num_calls(mended_events, "WriteReportOnce"))
assert (num_calls(events, "WriteReport"), num_calls(mended_events, "WriteReportOnce")) == (60, 3)
assert mended["waiting for batches"] < slow["waiting for batches"]

figure, axes = plt.subplots(figsize=(8, 3.2), layout="constrained")
places = range(len(slow))
axes.barh([place - 0.2 for place in places], list(slow.values()), height=0.4, label="before")
axes.barh([place + 0.2 for place in places], list(mended.values()), height=0.4, label="after")
axes.set(yticks=list(places), yticklabels=list(slow), xlabel="seconds in three epochs")
axes.invert_yaxis()
axes.legend()
plt.show()

# %%
# Times are those of the host. On a GPU a step returns when its work is queued, so work shows up where the host waits
# for it; ``Trainer(profiler="pytorch")`` looks inside. Each process of a run writes files of its own, and a callback
# that a loop of your own resolves is timed as well.
