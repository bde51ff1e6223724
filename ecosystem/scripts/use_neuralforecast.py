# /// script
# dependencies = ["neuralforecast"]
# ///
"""neuralforecast: NHITS, MLP, LSTM and TFT with three losses; cross-validation, prediction, saving, loading."""

import numpy
import pandas
from neuralforecast import NeuralForecast
from neuralforecast.losses.pytorch import MAE, DistributionLoss, MQLoss
from neuralforecast.models import LSTM, MLP, NHITS, TFT
from results import write

panel = pandas.DataFrame({"unique_id": numpy.repeat(list("abcd"), 90), "k": numpy.repeat([2, 3, 4, 5], 90)})
panel["ds"] = pandas.concat([pandas.Series(pandas.date_range("2020-01-01", periods=90))] * 4, ignore_index=True)
panel["y"] = numpy.sin(panel.ds.dt.dayofyear / panel.pop("k")) + numpy.random.default_rng(0).normal(0, 0.1, 360)
common = {"h": 6, "input_size": 18, "max_steps": 20, "val_check_steps": 5, "batch_size": 2, "random_seed": 5}
common |= {"accelerator": "cpu", "logger": False}
models = [
    NHITS(**common, mlp_units=3 * [[16, 16]], early_stop_patience_steps=2, loss=MAE()),
    MLP(**common, hidden_size=16, num_layers=2, loss=DistributionLoss("Normal", level=[80])),
    LSTM(**common, encoder_hidden_size=8, decoder_hidden_size=8, loss=MQLoss(level=[80])),
    TFT(**common, hidden_size=8, n_head=2, windows_batch_size=32),
]
forecast = NeuralForecast(models=models, freq="D")
forecast.fit(panel, val_size=12)
found = {"weights": list(forecast.models), "logged": [dict(model.metrics) for model in forecast.models]}
found["trajectories"] = [[loss for _, loss in model.valid_trajectories] for model in forecast.models]
found["predicted"] = forecast.predict()
forecast.save("saved", overwrite=True, save_dataset=True)
loaded = NeuralForecast.load("saved")
found["loaded"] = {"weights": list(loaded.models), "predicted": loaded.predict()}
found["validated"] = NeuralForecast(models=models[:2], freq="D").cross_validation(panel, val_size=12, n_windows=3)
write(**found)
