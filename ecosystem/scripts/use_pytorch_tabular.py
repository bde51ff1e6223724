# /// script
# dependencies = ["pytorch-tabular"]
# ///
"""pytorch-tabular: category embeddings, GANDALF and a transformer; validation, test, prediction, saving, loading."""

import numpy
import pandas
from pytorch_tabular import TabularModel
from pytorch_tabular.config import DataConfig, OptimizerConfig, TrainerConfig
from pytorch_tabular.models import CategoryEmbeddingModelConfig, FTTransformerConfig, GANDALFConfig
from results import write

noise = numpy.random.default_rng(0)
table = pandas.DataFrame({"a": noise.normal(size=240), "b": noise.normal(size=240)})
table["kind"] = noise.choice(list("xyz"), 240)
table["amount"] = table.a * 2 - table.b + (table.kind == "x")
table["label"] = (table.amount > 0).astype(int)
train, validation, test = table[:160], table[160:200], table[200:]
small = {"num_heads": 2, "num_attn_blocks": 1, "input_embed_dim": 8}
run = {"max_epochs": 4, "batch_size": 32, "accelerator": "cpu", "seed": 9, "load_best": True}
run |= {"early_stopping": "valid_loss", "early_stopping_patience": 2, "checkpoints": "valid_loss"}
found = {}
for name, build, task, options in (
    ("embedding", CategoryEmbeddingModelConfig, "classification", {"layers": "16-8", "dropout": 0.1}),
    ("gandalf", GANDALFConfig, "regression", {"gflu_stages": 2}),
    ("transformer", FTTransformerConfig, "classification", small),
):
    target = "label" if task == "classification" else "amount"
    model = TabularModel(
        data_config=DataConfig(target=[target], continuous_cols=["a", "b"], categorical_cols=["kind"]),
        model_config=build(task=task, learning_rate=0.01, seed=9, **options),
        optimizer_config=OptimizerConfig(lr_scheduler="StepLR", lr_scheduler_params={"step_size": 2}),
        trainer_config=TrainerConfig(**run),
        verbose=False,
    )
    model.fit(train=train, validation=validation)
    found[name] = {"weights": model.model, "logged": dict(model.trainer.callback_metrics)}
    found[name]["logged"]["tested"] = model.evaluate(test, verbose=False)
    found[name] |= {"predicted": model.predict(test)}
    model.save_model(name)
    loaded = TabularModel.load_model(name)
    found[name] |= {"loaded": loaded.model, "predicted by the loaded": loaded.predict(test)}
write(**found)
