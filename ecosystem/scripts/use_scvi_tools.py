# /// script
# dependencies = ["scvi-tools"]
# ///
"""scvi-tools: SCVI with early stopping and a learning rate schedule, SCANVI from it, LinearSCVI with checkpoints."""

import scvi
from results import write
from scvi.model import SCANVI, SCVI, LinearSCVI
from scvi.train import SaveCheckpoint

scvi.settings.seed = 4
cells = scvi.data.synthetic_iid(batch_size=60, n_genes=40, n_proteins=0, n_regions=0)
common = {"accelerator": "cpu", "batch_size": 36, "train_size": 0.8}
found = {}


def history(model):
    return {name: table.to_numpy(dtype=float) for name, table in model.history.items()}


SCVI.setup_anndata(cells, batch_key="batch", labels_key="labels")
model = SCVI(cells, n_hidden=16, n_latent=4)
model.train(
    max_epochs=6, early_stopping=True, early_stopping_patience=3, plan_kwargs={"reduce_lr_on_plateau": True}, **common
)
found["scvi"] = {"weights": model.module, "logged": history(model), "latent": model.get_latent_representation()}
found["scvi"] |= {"elbo": model.get_elbo(), "error": model.get_reconstruction_error()}
model.save("scvi", overwrite=True, save_anndata=False)
loaded = SCVI.load("scvi", adata=cells)
found["loaded"] = {"weights": loaded.module, "latent": loaded.get_latent_representation()}

annotated = SCANVI.from_scvi_model(model, unlabeled_category="label_0")
annotated.train(max_epochs=3, check_val_every_n_epoch=1, **common)
found["scanvi"] = {"weights": annotated.module, "logged": history(annotated), "predicted": annotated.predict(soft=True)}

LinearSCVI.setup_anndata(cells, batch_key="batch")
linear = LinearSCVI(cells, n_hidden=16, n_latent=4)
best = SaveCheckpoint(dirpath="checkpoints", monitor="elbo_validation", load_best_on_end=True)
linear.train(max_epochs=4, callbacks=[best], enable_checkpointing=True, **common)
found["linear"] = {"weights": linear.module, "loadings": linear.get_loadings(), "score": best.best_model_score}
found["linear"]["best"] = LinearSCVI.load(best.best_model_path, adata=cells).module
write(**found)
