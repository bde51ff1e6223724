# /// script
# dependencies = ["u8darts[torch]"]
# ///
"""darts: N-BEATS, GRU and TCN with a likelihood, with early stopping and checkpoints; saved, loaded, and resumed."""

import numpy
import torch
from darts.metrics import mae
from darts.models import BlockRNNModel, NBEATSModel, TCNModel
from darts.utils.likelihood_models import GaussianLikelihood
from darts.utils.timeseries_generation import gaussian_timeseries, sine_timeseries
from pytorch_lightning.callbacks import EarlyStopping
from results import write

numpy.random.seed(1)
torch.manual_seed(1)
series = sine_timeseries(length=160, start=0, value_frequency=0.05) + gaussian_timeseries(length=160, start=0) * 0.05
series = series.astype(numpy.float32)
train, validation = series[:120], series[100:]
common = {"input_chunk_length": 24, "output_chunk_length": 6, "n_epochs": 4, "batch_size": 16, "random_state": 3}
common |= {"work_dir": "work", "save_checkpoints": True, "force_reset": True}
decay = {"lr_scheduler_cls": torch.optim.lr_scheduler.ExponentialLR, "lr_scheduler_kwargs": {"gamma": 0.9}}
found = {}
for name, build, options in (
    ("nbeats", NBEATSModel, {"num_stacks": 2, "num_blocks": 1, "layer_widths": 16, "num_layers": 2}),
    ("rnn", BlockRNNModel, {"model": "GRU", "hidden_dim": 8, "dropout": 0.1, **decay}),
    ("tcn", TCNModel, {"num_filters": 2, "dropout": 0.1, "likelihood": GaussianLikelihood()}),
):
    stop = EarlyStopping(monitor="val_loss", patience=2, min_delta=0.001)
    model = build(**common, **options, model_name=name, pl_trainer_kwargs={"accelerator": "cpu", "callbacks": [stop]})
    model.fit(train, val_series=validation)
    prediction = model.predict(12, series=train, num_samples=20 if name == "tcn" else 1)
    found[name] = {"weights": model.model, "predicted": prediction.all_values(), "mae": mae(series, prediction)}
    found[name]["logged"] = dict(model.trainer.callback_metrics)
    model.save(f"{name}.pt")
    found[name]["loaded"] = build.load(f"{name}.pt").predict(6, series=train, random_state=5).all_values()
    found[name]["best"] = build.load_from_checkpoint(name, work_dir="work", best=True).model
    last = build.load_from_checkpoint(name, work_dir="work", best=False)
    last.fit(train, val_series=validation, epochs=6)  # resumes
    found[name]["other draws"] = last.model
write(**found)
