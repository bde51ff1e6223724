"""Subclasses of strategies, precisions and checkpoint plugins: the same classes on Lightning and under its names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

lightning = pytest.importorskip("lightning.pytorch", reason="compares with Lightning")
compat = pytest.importorskip("camshaft.compat")

pytestmark = pytest.mark.filterwarnings("ignore")

DATA = DataLoader(TensorDataset(torch.randn(16, 3, generator=torch.Generator().manual_seed(1))), 4)
OF_STRATEGIES = [
    *("connect", "setup_environment", "setup", "model_to_device", "setup_optimizers", "on_train_start", "on_train_end"),
    *("on_train_batch_start", "training_step", "validation_step", "batch_to_device", "backward", "pre_backward"),
    *("post_backward", "optimizer_step", "save_checkpoint", "load_checkpoint", "load_model_state_dict", "teardown"),
    *("load_optimizer_state_dict", "lightning_module_state_dict", "optimizer_state", "on_validation_start"),
    *("on_validation_end", "setup_precision_plugin"),
]
OF_DDP = ["setup_distributed", "configure_ddp", "_setup_model"]
OF_PRECISIONS = [
    *("connect", "convert_module", "convert_input", "forward_context", "train_step_context", "val_step_context"),
    *("backward", "optimizer_step", "clip_gradients", "clip_grad_by_norm"),
]
OF_PLUGINS = ["save_checkpoint", "load_checkpoint"]


def names_of(framework: Any) -> SimpleNamespace:
    """What code imports, from Lightning or from what stands for it."""
    if framework is lightning:
        from lightning.pytorch import plugins, strategies

        kinds = [strategies.DDPStrategy, strategies.SingleDeviceStrategy]
        further = [plugins.MixedPrecision, plugins.HalfPrecision, plugins.TorchCheckpointIO]
        made = [lightning.LightningModule, lightning.Trainer, *kinds, *further]
    else:
        from camshaft.compat.names.plugins import checkpoint_io, precision, strategies

        kinds = [strategies.DDPStrategy, strategies.SingleDeviceStrategy]
        further = [precision.MixedPrecision, precision.HalfPrecision, checkpoint_io.TorchCheckpointIO]
        made = [compat.TrainingModule, compat.Trainer, *kinds, *further]
    keys = ("Module", "Trainer", "DDPStrategy", "SingleDeviceStrategy", "MixedPrecision", "HalfPrecision", "IO")
    return SimpleNamespace(**dict(zip(keys, made, strict=True)))


def counting(base: type, methods: list[str], calls: Counter[str]) -> type:
    """A subclass that counts the calls of methods, and does what the base does."""

    def count(name: str) -> Callable[..., Any]:
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            calls[name] += 1
            return getattr(super(made, self), name)(*args, **kwargs)

        return method

    made = type("Counting", (base,), {name: count(name) for name in methods})
    return made


def module_of(names: SimpleNamespace) -> Any:
    class Module(names.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layer = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return self.layer(batch[0]).square().mean()

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.log("loss", self.layer(batch[0]).square().mean())

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters(), 0.1)

    return Module()


def run(framework: Any, folder: Path, make: Callable[[SimpleNamespace, Counter[str]], dict[str, Any]]) -> Any:
    """Train, save, and resume; return counts of calls, and the weights."""
    names, calls = names_of(framework), Counter[str]()
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "num_sanity_val_steps": 0}
    common = {"accelerator": "cpu", "devices": 1, "enable_checkpointing": False, "default_root_dir": folder, **quiet}
    common["use_distributed_sampler"] = False  # Lightning's shuffles what the loader does not
    path = folder / f"{framework.__name__}.ckpt"
    for max_epochs in (1, 2):
        trainer = names.Trainer(max_epochs=max_epochs, gradient_clip_val=0.1, **common, **make(names, calls))
        module = module_of(names)
        trainer.fit(module, DATA, DATA, ckpt_path=path if max_epochs == 2 else None)
        trainer.save_checkpoint(path)
        if dist.is_initialized():
            dist.destroy_process_group()
    return calls, module.state_dict()


SCENES: dict[str, Callable[[SimpleNamespace, Counter[str]], dict[str, Any]]] = {
    "one device": lambda names, calls: {"strategy": counting(names.SingleDeviceStrategy, OF_STRATEGIES, calls)()},
    "ddp": lambda names, calls: {"strategy": counting(names.DDPStrategy, OF_STRATEGIES + OF_DDP, calls)()},
    "mixed": lambda names, calls: {
        "plugins": [counting(names.MixedPrecision, OF_PRECISIONS, calls)("bf16-mixed", "cpu")]
    },
    "half": lambda names, calls: {"plugins": [counting(names.HalfPrecision, OF_PRECISIONS, calls)("bf16-true")]},
    "files": lambda names, calls: {"plugins": [counting(names.IO, OF_PLUGINS, calls)()]},
    "without autocast": lambda names, calls: {"plugins": [without_autocast(names)("bf16-mixed", "cpu")]},
    "own step": lambda names, calls: {"strategy": scaled_step(names)()},
}


def without_autocast(names: SimpleNamespace) -> Any:
    class Own(names.MixedPrecision):  # type: ignore[misc, name-defined]
        @contextmanager
        def forward_context(self) -> Iterator[None]:
            yield

    return Own


def scaled_step(names: SimpleNamespace) -> Any:
    class Own(names.SingleDeviceStrategy):  # type: ignore[misc, name-defined]
        def training_step(self, *args: Any, **kwargs: Any) -> Any:
            return 2 * super().training_step(*args, **kwargs)

        def post_backward(self, closure_loss: Any) -> None:
            for parameter in self.model.parameters():
                parameter.grad *= 0.5

    return Own


@pytest.mark.parametrize("scene", SCENES)
def test_overrides_are_called_as_often_and_train_the_same(scene: str, tmp_path: Path) -> None:
    expected, theirs = run(lightning, tmp_path, SCENES[scene])
    found, ours = run(compat, tmp_path, SCENES[scene])
    assert found == expected
    for name, value in theirs.items():
        assert torch.equal(ours[name], value), name
