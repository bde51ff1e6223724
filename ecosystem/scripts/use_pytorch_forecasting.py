# /// script
# dependencies = ["pytorch-forecasting"]
# ///
"""pytorch-forecasting: TFT, DeepAR and N-BEATS; validation, test, prediction from the best checkpoint."""

import numpy
import pandas
from lightning.pytorch import Trainer, seed_everything
from lightning.pytorch.callbacks import EarlyStopping, LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from pytorch_forecasting import DeepAR, GroupNormalizer, NBeats, TemporalFusionTransformer, TimeSeriesDataSet
from pytorch_forecasting.metrics import MAE, NormalDistributionLoss, QuantileLoss
from results import write

seed_everything(2)
panel = pandas.DataFrame({"step": numpy.tile(numpy.arange(60), 5), "group": numpy.repeat(list("abcde"), 60)})
panel["value"] = numpy.sin(panel.step / 4) + panel.group.map(ord) % 7 + numpy.random.default_rng(0).normal(0, 0.1, 300)
common = {"time_idx": "step", "target": "value", "group_ids": ["group"], "time_varying_unknown_reals": ["value"]}
common |= {"max_encoder_length": 12, "max_prediction_length": 4}
known = {"static_categoricals": ["group"], "time_varying_known_reals": ["step"]}
known |= {"target_normalizer": GroupNormalizer(groups=["group"])}
found = {}
for name, build, variables, options in (
    ("tft", TemporalFusionTransformer, known, {"hidden_size": 8, "hidden_continuous_size": 4, "loss": QuantileLoss()}),
    ("deepar", DeepAR, known, {"hidden_size": 8, "rnn_layers": 1, "loss": NormalDistributionLoss()}),
    ("nbeats", NBeats, {}, {"widths": [16, 16], "num_blocks": [1, 1], "num_block_layers": [1, 1]}),
):
    dataset = TimeSeriesDataSet(panel[panel.step < 52], **common, **variables)
    later = TimeSeriesDataSet.from_dataset(dataset, panel, predict=True, stop_randomization=True)
    train, validation = dataset.to_dataloader(batch_size=16), later.to_dataloader(train=False, batch_size=16)
    model = build.from_dataset(dataset, learning_rate=0.02, log_interval=-1, reduce_on_plateau_patience=1, **options)
    best = ModelCheckpoint(monitor="val_loss")
    callbacks = [best, EarlyStopping(monitor="val_loss", patience=3), LearningRateMonitor()]
    limits = {"max_epochs": 3, "limit_train_batches": 8, "gradient_clip_val": 0.1}
    trainer = Trainer(**limits, accelerator="cpu", callbacks=callbacks, logger=CSVLogger("logs", name=name))
    trainer.fit(model, train, validation)
    found[name] = {"weights": model, "logged": dict(trainer.callback_metrics)}
    found[name]["logged"]["tested"] = trainer.test(model, validation)
    loaded = build.load_from_checkpoint(best.best_model_path, weights_only=False)
    found[name] |= {"loaded": loaded, "score": best.best_model_score}
    arguments = {"accelerator": "cpu", "logger": False}
    prediction = loaded.predict(validation, return_y=True, trainer_kwargs=arguments)
    found[name] |= {"predicted": prediction.output, "mae": MAE()(prediction.output, prediction.y)}
write(**found)
