# /// script
# dependencies = ["chemprop"]
# ///
"""chemprop: message passing on molecules, a regression and a classification; test, prediction, two ways of loading."""

import torch
from chemprop import data, models, nn
from lightning import pytorch as pl
from lightning.pytorch.callbacks import ModelCheckpoint
from results import write

SMILES = ["C" * n + end for n in range(1, 11) for end in ("O", "N", "Cl", "C(=O)O")]
found = {}
for task, predictor, metrics in (
    ("regression", nn.RegressionFFN, [nn.metrics.RMSE(), nn.metrics.MAE()]),
    ("classification", nn.BinaryClassificationFFN, [nn.metrics.BinaryAUROC()]),
):
    pl.seed_everything(7)
    values = [[float(len(text))] if task == "regression" else [float("O" in text)] for text in SMILES]
    points = [data.MoleculeDatapoint.from_smi(text, value) for text, value in zip(SMILES, values, strict=True)]
    train, validation = data.MoleculeDataset(points[:30]), data.MoleculeDataset(points[30:])
    transform = None
    if task == "regression":
        scaler = train.normalize_targets()
        validation.normalize_targets(scaler)
        transform = nn.UnscaleTransform.from_standard_scaler(scaler)
    train_loader = data.build_dataloader(train, batch_size=8, seed=1)
    loader = data.build_dataloader(validation, batch_size=8, shuffle=False)
    head = predictor(input_dim=32, output_transform=transform)
    model = models.MPNN(nn.BondMessagePassing(d_h=32), nn.MeanAggregation(), head, True, metrics, max_lr=1e-2)
    best = ModelCheckpoint(dirpath="checkpoints", filename="{epoch}-{val_loss:.2f}", monitor="val_loss", save_last=True)
    trainer = pl.Trainer(max_epochs=4, accelerator="cpu", callbacks=[best])
    trainer.fit(model, train_loader, loader)
    found[task] = {"logged": dict(trainer.callback_metrics), "weights": model}
    found[task]["predicted"] = trainer.predict(model, loader)
    found[task]["logged"]["tested"] = trainer.test(dataloaders=loader, ckpt_path="best", weights_only=False)
    models.save_model(f"{task}.pt", model)
    found[task]["loaded"] = models.load_model(f"{task}.pt", multicomponent=False)
    found[task]["best"] = models.MPNN.load_from_checkpoint(best.best_model_path)
    found[task]["best epoch"] = torch.load(best.best_model_path, weights_only=False)["epoch"]
write(**found)
