"""Write which hooks a release of Lightning calls, in order, as JSON: what Lightning's own `test_hooks.py` compares.

python recorder.py PACKAGE FILE [LIST]

PACKAGE is `pytorch_lightning` or `lightning.pytorch`. Without LIST the hooks are those of the installed release; with
the LIST of a release they are those that it names, with the parameters that they had then: the classes are those that
somebody would have written for it. Under `python -m camshaft.compat run` the package is camshaft.
"""

from __future__ import annotations

import inspect
import json
import logging
import sys
import tempfile
import warnings
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

PACKAGE = sys.argv[1]
LIST = json.loads(Path(sys.argv[3]).read_text()) if len(sys.argv) > 3 else None
pl = import_module(PACKAGE)

FURTHER = """
    backward clip_gradients configure_callbacks configure_gradient_clipping configure_model configure_optimizers
    configure_sharded_model lr_scheduler_step optimizer_step optimizer_zero_grad predict_dataloader predict_step
    prepare_data setup state_dict teardown test_dataloader test_epoch_end test_step test_step_end train_dataloader
    training_epoch_end training_step training_step_end transfer_batch_to_device val_dataloader validation_epoch_end
    validation_step validation_step_end"""
"""Hooks whose names do not begin with "on_"."""

REFUSED = ("module.configure_sharded_model", "data.on_save_checkpoint", "data.on_load_checkpoint")
"""Hooks that some release refuses, beside the ones that took their place."""

BASES = {"module": "LightningModule", "callback": "Callback", "data": "LightningDataModule"}

OWN = {
    "forward": "return self.layer(batch)",
    "configure_optimizers": """optimizer = torch.optim.SGD(self.parameters(), 0.1)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]""",
    **dict.fromkeys(("validation_step", "test_step"), 'return {"x": self(batch).sum()}'),
    "predict_step": "return self(batch)",
    **{f"{stage}_dataloader": "return DataLoader(torch.ones(8, 2))" for stage in ("train", "val", "test", "predict")},
}
"""Bodies of hooks that do not call those of the base class."""

BY_HAND = """optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(self(batch).sum())
        optimizer.step()"""


def hooks_of(receiver: str) -> dict[str, list[str]]:
    """Return the parameters of each hook of a base class."""
    found = {}
    for name, function in inspect.getmembers(getattr(pl, BASES[receiver]), inspect.isfunction):
        is_of_torch = receiver == "module" and "state_dict" in name
        is_hook = name.startswith("on_") or name in FURTHER.split()
        if is_hook and not is_of_torch and f"{receiver}.{name}" not in REFUSED:
            given = list(inspect.signature(function).parameters.values())[1:]
            found[name] = [str(one.replace(annotation=inspect.Parameter.empty)) for one in given]
    if receiver == "module":
        for name in ("training_step", "validation_step", "test_step", "predict_step"):
            found[name] = ["batch", "batch_idx"]
        found.update(forward=["batch"], **{name: [] for name in found if name.endswith("_dataloader")})
    return found


def method(receiver: str, name: str, parameters: list[str], is_by_hand: bool) -> str:
    """Return a method that records its call."""
    names = [one.partition("=")[0] for one in parameters if one != "*"]
    plain = [one for one in names if not one.startswith("*")]
    body = OWN.get(name) if receiver == "module" or name.endswith("_dataloader") else None
    if receiver == "module" and name == "training_step":
        body = BY_HAND if is_by_hand else "return self(batch).sum()"
    body = body or f"return super().{name}({', '.join(names)})"
    return f"""
    def {name}(self, {", ".join(parameters)}):
        record("{receiver}.{name}", [{", ".join(plain)}])
        {body}
"""


def source(hooks: dict[str, dict[str, list[str]]], is_by_hand: bool) -> str:
    """Return the text of classes that record every hook."""
    text = f"import torch\nimport {PACKAGE} as pl\nfrom torch.utils.data import DataLoader\n"
    for receiver, base in BASES.items():
        text += f"\n\nclass Recording{base}(pl.{base}):\n    hook_era = {RELEASE!r}\n"
        if receiver == "module":
            text += f"""
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)
        self.automatic_optimization = {not is_by_hand}
"""
        text += "".join(method(receiver, name, given, is_by_hand) for name, given in hooks[receiver].items())
    return text


def classes(is_by_hand: bool = False) -> tuple[Any, Any, Any]:
    """Return a module, a callback and a data module."""
    folder = Path(tempfile.mkdtemp())
    name = f"recording_classes_{is_by_hand}".lower()
    if name not in sys.modules:
        folder.joinpath(f"{name}.py").write_text(source(HOOKS, is_by_hand))
        sys.path.insert(0, str(folder))
    made = import_module(name)
    made.record = record  # type: ignore[attr-defined]
    return made.RecordingLightningModule(), made.RecordingCallback(), made.RecordingLightningDataModule()


calls: list[str] = []


def record(name: str, values: list[Any]) -> None:
    plain = [getattr(one, "value", one) for one in values]  # a stage may be a name or a member of an enumeration
    shown = ", ".join(repr(one) if isinstance(one, bool | int | float | str | None) else "_" for one in plain)
    calls.append(f"{name}({shown})")


def trainer(callback: Any, **kwargs: Any) -> Any:
    settings: dict[str, Any] = {"max_epochs": 1, "accelerator": "cpu", "devices": 1, "logger": False}
    settings |= {"enable_progress_bar": False, "enable_model_summary": False, "default_root_dir": tempfile.mkdtemp()}
    limits = {f"limit_{stage}_batches": 2 for stage in ("train", "val", "test", "predict")}
    return pl.Trainer(callbacks=[callback], **{**settings, **limits, **kwargs})


def fit(is_by_hand: bool = False, **kwargs: Any) -> None:
    module, callback, _ = classes(is_by_hand)
    trainer(callback, **kwargs).fit(module)


def resume(first: dict[str, int], second: dict[str, int]) -> None:
    module, callback, _ = classes()
    stopped = trainer(callback, limit_val_batches=0, **first)
    stopped.fit(module)
    calls.clear()
    path = stopped.checkpoint_callback.best_model_path
    module, callback, _ = classes()
    trainer(callback, limit_val_batches=0, **second).fit(module, ckpt_path=path)


def verb(name: str, **kwargs: Any) -> None:
    module, callback, _ = classes()
    getattr(trainer(callback, **kwargs), name)(module)


def with_data_module(name: str) -> None:
    module, callback, data = classes()
    getattr(trainer(callback), name)(module, datamodule=data)


SCENARIOS: dict[str, Callable[[], None]] = {
    "fit": fit,
    "fit by hand": lambda: fit(is_by_hand=True),
    "fit of two epochs without validation": lambda: fit(max_epochs=2, limit_val_batches=0),
    "fit resumed at an epoch's end": lambda: resume({"max_epochs": 1}, {"max_epochs": 2}),
    "fit resumed within an epoch": lambda: resume(
        {"max_steps": 1, "max_epochs": -1}, {"max_steps": 2, "max_epochs": -1}
    ),
    "validate": lambda: verb("validate"),
    "test": lambda: verb("test"),
    "predict": lambda: verb("predict"),
    "validate without batches": lambda: verb("validate", limit_val_batches=0),
    "fit with a data module": lambda: with_data_module("fit"),
    "test with a data module": lambda: with_data_module("test"),
}

warnings.simplefilter("ignore")
for logger in ("pytorch_lightning", "lightning.pytorch"):
    logging.getLogger(logger).setLevel(logging.ERROR)
RELEASE = pl.__version__ if LIST is None else LIST["release"]
HOOKS = {receiver: hooks_of(receiver) for receiver in BASES} if LIST is None else LIST["hooks"]
recorded = {}
for title, scenario in SCENARIOS.items():
    calls.clear()
    try:
        scenario()
    except Exception as error:
        calls.append(f"{type(error).__name__}: {error}")
    recorded[title] = list(calls)
Path(sys.argv[2]).write_text(json.dumps({"release": RELEASE, "hooks": HOOKS, "calls": recorded}, indent=0) + "\n")
