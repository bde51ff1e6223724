"""Small runs of torchtitan on the CPU, in place of the GPU that it looks for; to be imported before the rest of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import distributed, nn
from torchtitan.tools import utils

# what it asks of the module of a device, `torch.cuda` say, and `torch.cpu` has not
LACKING: dict[str, Any] = {
    "current_device": lambda: 0,
    "empty_cache": lambda: None,
    "get_device_name": lambda device: "cpu",
    "get_device_properties": lambda device: SimpleNamespace(total_memory=1),
    "memory_stats": lambda device: {},
    "reset_peak_memory_stats": lambda: None,
}
vars(distributed).setdefault("set_timeout", distributed.distributed_c10d._set_pg_timeout)  # as torch 2.14 calls it
utils.device_type, utils.device_module = "cpu", SimpleNamespace(**{**vars(torch.cpu), **LACKING})

from torchtitan.components.optimizer import default_adamw  # noqa: E402
from torchtitan.config import TrainingConfig  # noqa: E402
from torchtitan.protocols import BaseModel, ModelSpec  # noqa: E402
from torchtitan.trainer import Trainer  # noqa: E402


@dataclass
class Part:
    """Part of the configuration that is built already."""

    built: Any
    infinite: bool = True

    def build(self, **others: Any) -> Any:
        return self.built


class Model(BaseModel):
    """Model whose forward is a function, over a module whose weights it trains."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseModel.Config):
        module: nn.Module
        function: Callable[..., Any]

        def update_from_config(self, **others: Any) -> None: ...

        def get_nparams_and_flops(self, model: Any, seq_len: int) -> tuple[int, int]:
            return sum(one.numel() for one in model.parameters()), 1

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.module, self.function = config.module, config.function

    def verify_module_protocol(self) -> None: ...

    def init_states(self, **others: Any) -> None:
        for part in self.module.modules():
            getattr(part, "reset_parameters", lambda: None)()

    def forward(self, inputs: Any) -> Any:
        return self.function(self, inputs)


def configuration(
    module: nn.Module, function: Callable[..., Any], batches: Any, num_batches: int, accumulate: int = 1, **others: Any
) -> Trainer.Config:
    """Return the configuration of a run in which the function of the model and a batch returns the loss."""
    spec = ModelSpec(
        "line", "small", Model.Config(module=module, function=function), lambda model, **_: model, *[None] * 3
    )
    training = TrainingConfig(
        local_batch_size=1, global_batch_size=accumulate, steps=-(-num_batches // accumulate), disable_cuda_graphs=True
    )
    optimizer = default_adamw(lr=0.1)
    optimizer.implementation = "for-loop"
    parts = {"tokenizer": Part(None), "dataloader": Part(batches), "loss": Part(lambda loss, *_: (loss, {}))}
    return Trainer.Config(model_spec=spec, training=training, optimizer=optimizer, **parts, **others)


@contextmanager
def one_process() -> Iterator[None]:
    """Join a group of one process, as torchtitan's launcher has a process join those of its run."""
    os.environ["LOCAL_RANK"] = "0"
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    try:
        yield
    finally:
        distributed.destroy_process_group()
