# /// script
# dependencies = ["gluonts[torch]"]
# ///
"""gluonts: SimpleFeedForward, DeepAR, TFT and PatchTST with validation; prediction, saving, loading, training on."""

from pathlib import Path

import numpy
import torch
from gluonts.dataset.common import ListDataset
from gluonts.model.predictor import Predictor
from gluonts.torch import DeepAREstimator, PatchTSTEstimator, SimpleFeedForwardEstimator
from gluonts.torch import TemporalFusionTransformerEstimator as TFTEstimator
from lightning.pytorch import seed_everything
from results import write

steps = numpy.arange(120)
series = [{"start": "2021-01-01", "target": numpy.sin(steps / (k + 3)) + k} for k in range(4)]
train = ListDataset([{**one, "target": one["target"][:96]} for one in series], freq="D")
validation = ListDataset(series, freq="D")
common = {"prediction_length": 8, "context_length": 16, "batch_size": 8, "num_batches_per_epoch": 5}
found = {}
for build, options in (
    (SimpleFeedForwardEstimator, {"hidden_dimensions": [8]}),
    (DeepAREstimator, {"freq": "D", "hidden_size": 8, "num_layers": 1, "num_parallel_samples": 10}),
    (TFTEstimator, {"freq": "D", "hidden_dim": 8, "variable_dim": 8}),
    (PatchTSTEstimator, {"patch_len": 4, "d_model": 8, "nhead": 2, "dim_feedforward": 16}),
):
    seed_everything(11)
    estimator = build(**common, **options, trainer_kwargs={"max_epochs": 3, "accelerator": "cpu"})
    trained = estimator.train_model(train, validation)
    name, predictor = build.__name__, trained.predictor
    found[name] = {"weights": trained.trained_net, "logged": dict(trained.trainer.callback_metrics)}
    torch.manual_seed(1)
    found[name]["predicted"] = [forecast.quantile(0.5) for forecast in predictor.predict(validation)]
    Path(name).mkdir()
    predictor.serialize(Path(name))
    torch.manual_seed(1)
    loaded = Predictor.deserialize(Path(name))
    found[name]["loaded"] = [forecast.mean for forecast in loaded.predict(validation)]
    found[name]["trained on"] = estimator.train_from(predictor, train, validation).network
write(**found)
