"""Mutants in checkpoints and from one run to the next."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from strategies_in_threads import InThreads, OnCPU, Scaling
from torch import Tensor, nn
from torch.optim import Optimizer

from camshaft.strategies import write_checkpoint


class LoadsLists(OnCPU):
    def load_checkpoint(self, path: str) -> dict[str, Any]:
        checkpoint = super().load_checkpoint(path)
        for values in checkpoint.values():
            if isinstance(values, dict) and "tuple" in values:
                values["tuple"] = list(values["tuple"])
        return checkpoint


class SavesOnEachRank(InThreads):
    def save_checkpoint(self, checkpoint: Mapping[str, Any], path: str) -> None:
        write_checkpoint(checkpoint, f"{path}.{self.global_rank}")

    def load_checkpoint(self, path: str) -> dict[str, Any]:
        return super().load_checkpoint(f"{path}.{self.global_rank}")


class SavesLate:
    """A checkpoint that is written when somebody waits for it."""

    def __init__(self, save: Callable[[], object]) -> None:
        self.wait = save


class SavesWhenWaitedFor(OnCPU):
    def save_checkpoint(self, checkpoint: Mapping[str, Any], path: str) -> Any:
        return SavesLate(lambda: write_checkpoint(checkpoint, path))


class WritesInPlace(OnCPU):
    def save_checkpoint(self, checkpoint: Mapping[str, Any], path: str) -> None:
        torch.save(dict(checkpoint), path)


class DeletesFirst(OnCPU):
    def save_checkpoint(self, checkpoint: Mapping[str, Any], path: str) -> None:
        Path(path).unlink(missing_ok=True)
        super().save_checkpoint(checkpoint, path)


class FailsInSilence(OnCPU):
    def save_checkpoint(self, checkpoint: Mapping[str, Any], path: str) -> None:
        with suppress(TypeError):
            super().save_checkpoint(checkpoint, path)


class FailsOnOneRank(InThreads):
    def save_checkpoint(self, checkpoint: Mapping[str, Any], path: str) -> None:
        try:
            super().save_checkpoint(checkpoint, path)
        except TypeError:
            if self.global_rank == 0:
                raise


class ForgetsOptimizers(OnCPU):
    def load_optimizer_state(self, optimizer: Optimizer, state: Mapping[str, Any]) -> None:
        pass


class ForgetsWeights(OnCPU):
    def load_module_state(self, module: nn.Module, state: Mapping[str, Any]) -> None:
        pass


class ForgetsWhatItLearned(Scaling):
    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


class TakesAnyState(Scaling):
    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.num_skipped = state.get("num_skipped", -1)


class LearnsTensors(Scaling):
    def state_dict(self) -> dict[str, Any]:
        return {"num_skipped": torch.tensor(0)}


class TearsDownTogether(InThreads):
    def teardown(self) -> None:
        self.barrier()


class TearsDownWhatIsThere(OnCPU):
    def setup_module(self, module: nn.Module) -> nn.Module:
        self.module = module
        return super().setup_module(module)

    def teardown(self) -> None:
        self.module.to("cpu")


class TakesTheModuleAlong(TearsDownWhatIsThere):
    def teardown(self) -> None:
        self.module.to("meta")


class ForgetsWhenTornDown(TearsDownWhatIsThere):
    def teardown(self) -> None:
        for parameter in self.module.parameters():
            parameter.detach().mul_(0.5)


class LivesOnce(OnCPU):
    has_lived = False

    def setup_module(self, module: nn.Module) -> nn.Module:
        if self.has_lived:
            raise RuntimeError("set up already")
        self.has_lived = True
        return super().setup_module(module)


class LeavesAMark(OnCPU):
    """What one strategy changes stays for the next."""

    rate = 1.0

    def backward(self, loss: Tensor) -> None:
        super().backward(loss * LeavesAMark.rate)

    def teardown(self) -> None:
        LeavesAMark.rate *= 0.5


class SharesItsModule(OnCPU):
    modules: list[nn.Module] = []  # noqa: RUF012  # of the class, which is the mistake

    def setup_module(self, module: nn.Module) -> nn.Module:
        self.modules.append(module)
        return super().setup_module(module)

    def optimizer_step(self, optimizer: Optimizer, closure: Callable[[], Any] | None = None) -> Any:
        result = super().optimizer_step(optimizer, closure)
        for module in self.modules[:-1]:
            for parameter in module.parameters():
                parameter.detach().mul_(0.9)
        return result

    def teardown(self) -> None:
        self.modules.pop()
