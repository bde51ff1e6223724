"""The strategies of the examples, each on the CPU unless it is asked for something else."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from lightning.fabric import Fabric

from camshaft.hooks_core.protocols import Strategy

EXAMPLES = Path(__file__).parents[2] / "examples"
if str(EXAMPLES) not in sys.path:
    sys.path.insert(0, str(EXAMPLES))

from strategy_accelerate import AccelerateStrategy  # noqa: E402  (they lie in the folder that was just added)
from strategy_fabric import FabricStrategy  # noqa: E402
from strategy_torch import TorchStrategy  # noqa: E402


def on_torch(*, bf16: bool = False, device: str = "cpu") -> Strategy:
    return TorchStrategy(device, bf16)


def on_accelerate(*, bf16: bool = False, device: str = "cpu", **arguments: Any) -> Strategy:
    """Accelerate keeps one configuration for the whole process, so an earlier one is forgotten first."""
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    arguments.setdefault("mixed_precision", "bf16" if bf16 else "no")
    return AccelerateStrategy(Accelerator(cpu=device == "cpu", **arguments))


def on_fabric(*, bf16: bool = False, device: str = "cpu", devices: int = 1, **arguments: Any) -> Strategy:
    if not arguments:
        arguments["precision"] = "bf16-mixed" if bf16 else "32-true"
    fabric = Fabric(accelerator=device, devices=devices, **arguments)
    if devices > 1:
        fabric.launch()
    return FabricStrategy(fabric)


BUILDERS: dict[str, Callable[..., Strategy]] = {"torch": on_torch, "accelerate": on_accelerate, "fabric": on_fabric}
