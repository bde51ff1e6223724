# /// script
# dependencies = ["optuna-integration", "lightning"]
# ///
"""optuna-integration: a study whose trials are pruned by Lightning's pruning callback."""

import optuna
import torch
from lightning import pytorch as pl
from optuna_integration import PyTorchLightningPruningCallback
from results import write
from torch.utils.data import DataLoader, TensorDataset


class Net(pl.LightningModule):
    def __init__(self, width: int, lr: float) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = torch.nn.Sequential(torch.nn.Linear(4, width), torch.nn.ReLU(), torch.nn.Linear(width, 1))

    def training_step(self, batch, batch_idx):
        return torch.nn.functional.mse_loss(self.net(batch[0]), batch[1])

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", torch.nn.functional.mse_loss(self.net(batch[0]), batch[1]))

    def predict_step(self, batch, batch_idx):
        return self.net(batch[0])

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.hparams.lr)


found = {}


def objective(trial: optuna.Trial) -> float:
    pl.seed_everything(6)
    x = torch.randn(96, 4)
    dataset = TensorDataset(x, x.sum(dim=1, keepdim=True))
    validation = DataLoader(dataset, 32)
    model = Net(trial.suggest_int("width", 2, 16), trial.suggest_float("lr", 1e-4, 1e-1, log=True))
    pruning = PyTorchLightningPruningCallback(trial, monitor="val_loss")
    trainer = pl.Trainer(max_epochs=5, callbacks=[pruning], enable_checkpointing=False, logger=False)
    trainer.fit(model, DataLoader(dataset, 16, shuffle=True), validation)
    value = trainer.callback_metrics["val_loss"].item()
    trainer.save_checkpoint(f"{trial.number}.ckpt")
    loaded = Net.load_from_checkpoint(f"{trial.number}.ckpt")
    found[f"trial {trial.number}"] = {"weights": loaded, "predicted": trainer.predict(model, validation)}
    return value


pruner = optuna.pruners.MedianPruner(n_startup_trials=2)
study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=3), pruner=pruner)
study.optimize(objective, n_trials=8)
found["logged"] = [list(trial.intermediate_values.values()) for trial in study.trials]
found["pruned"] = [trial.state == optuna.trial.TrialState.PRUNED for trial in study.trials]
write(**found)
