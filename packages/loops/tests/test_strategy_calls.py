"""What the loops ask of a strategy, and when."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from bare_parts import BareStrategy, BareTrainer, Net, Sized, adam, hooked, make_batches, same_bits, weights
from torch import Tensor, nn
from torch.optim import Optimizer

from camshaft.loops import TestLoop

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


class Recording(BareStrategy):
    """Notes what it is asked; `log` is shared with the hooks."""

    def __init__(self, log: list[str]) -> None:
        super().__init__()
        self.log = log

    def connect(self) -> None:
        self.log.append("connect")

    @contextmanager
    def model_context(self, module: nn.Module) -> Iterator[None]:
        self.log.append("context begins")
        yield
        self.log.append("context ends")

    def setup_module(self, module: nn.Module) -> nn.Module:
        self.log.append("setup_module")
        return module

    def setup_optimizers(self, optimizers: Any) -> list[Optimizer]:
        self.log.append("setup_optimizers")
        return list(optimizers)

    def load_module_state(self, module: nn.Module, state: Mapping[str, Any]) -> None:
        self.log.append("load_module_state")
        super().load_module_state(module, state)

    def load_optimizer_state(self, optimizer: Optimizer, state: Mapping[str, Any]) -> None:
        self.log.append("load_optimizer_state")
        super().load_optimizer_state(optimizer, state)

    def note_failure(self, error: BaseException) -> None:
        self.log.append(f"note_failure: {error}")

    def teardown(self) -> None:
        self.log.append("strategy teardown")


class Building(Net):
    """Notes when it is built."""

    def __init__(self, log: list[str]) -> None:
        super().__init__(adam)
        self._log = log

    def configure_sharded_model(self) -> None:
        self._log.append("configure_sharded_model")

    def configure_model(self) -> None:
        self._log.append("configure_model")

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self._log.append("on_load_checkpoint")


BUILT = ["context begins", "configure_sharded_model", "configure_model", "context ends"]


def test_a_model_is_built_in_its_context_then_set_up_then_loaded() -> None:
    log: list[str] = []
    first = BareTrainer(Building([]), max_epochs=1, callbacks=[hooked(on_train_epoch_end=save)])
    first.fit(Sized(make_batches(2)))
    hooks = hooked(setup=lambda *_: log.append("setup"), on_fit_start=lambda *_: log.append("fit"))
    trainer = BareTrainer(Building(log), callbacks=[hooks], strategy=Recording(log), max_epochs=2)
    trainer.fit(Sized(make_batches(2)), checkpoint=first.load("x"))
    loaded = ["on_load_checkpoint", "setup_module", "load_module_state"]
    trained = ["setup_optimizers", "fit", "load_optimizer_state", "strategy teardown"]
    assert log == ["connect", "setup", *BUILT, *loaded, *trained]
    assert trainer.global_step == 4


def test_every_verb_builds_and_sets_up() -> None:
    log: list[str] = []
    trainer = BareTrainer(Building(log), strategy=Recording(log))
    trainer.verb("test", TestLoop(), Sized(make_batches(1)))
    assert log == ["connect", *BUILT, "setup_module", "strategy teardown"]


def test_a_strategy_learns_of_a_failure_before_anybody_else() -> None:
    log: list[str] = []

    def fail(trainer: Any, module: Any) -> None:
        raise RuntimeError("this rank")

    hooks = hooked(on_train_start=fail, on_exception=lambda *_: log.append("on_exception"))
    with pytest.raises(RuntimeError, match="this rank"):
        BareTrainer(Net(), callbacks=[hooks], strategy=Recording(log), max_epochs=1).fit(Sized(make_batches(1)))
    assert log[-3:] == ["note_failure: this rank", "on_exception", "strategy teardown"]


class Scaling(BareStrategy):
    """Multiplies losses by 8, and skips the updates whose numbers it is given."""

    def __init__(self, skipped: tuple[int, ...] = ()) -> None:
        super().__init__()
        self.skipped = skipped
        self.num_asked = 0
        self.is_scaled = False

    def backward(self, loss: Tensor, differentiate: Callable[[Tensor], Any] | None = None) -> None:
        super().backward(loss * 8, differentiate)
        self.is_scaled = True

    def unscale_gradients(self, optimizer: Optimizer) -> None:
        if self.is_scaled:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.grad /= 8
        self.is_scaled = False

    def optimizer_step(self, optimizer: Optimizer, closure: Callable[[], Any] | None = None) -> Any:
        loss = None if closure is None else closure()
        self.unscale_gradients(optimizer)
        self.has_skipped_step = self.num_asked in self.skipped
        self.num_asked += 1
        if not self.has_skipped_step:
            optimizer.step()
        return loss

    def state_dict(self) -> dict[str, Any]:
        return {"num_asked": self.num_asked}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.num_asked = state.get("num_asked", 0)


def save(trainer: Any, *_: Any) -> None:
    trainer.save_checkpoint("x")


def gradient_of_hook(strategy: BareStrategy, **arguments: Any) -> list[Tensor]:
    """The gradients that `on_before_optimizer_step` sees."""
    seen: list[Tensor] = []

    def look(trainer: Any, module: Any, optimizer: Any) -> None:
        seen.extend(parameter.grad.clone() for parameter in module.parameters())

    torch.manual_seed(0)
    module = Net()
    BareTrainer(
        module, callbacks=[hooked(on_before_optimizer_step=look)], strategy=strategy, max_epochs=1, **arguments
    ).fit(Sized(make_batches(4)))
    return seen + weights(module)


@pytest.mark.parametrize("arguments", [{}, {"gradient_clip_val": 0.01}, {"accumulate_grad_batches": 3}])
def test_hooks_and_clipping_see_gradients_of_true_size(arguments: dict[str, Any]) -> None:
    assert same_bits(gradient_of_hook(Scaling(), **arguments), gradient_of_hook(BareStrategy(), **arguments))


def test_an_update_that_the_strategy_skipped_counts_neither_for_limits_nor_for_schedulers() -> None:
    def configure(module: nn.Module) -> Any:
        optimizer = torch.optim.SGD(module.parameters(), 1.0)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    trainer = BareTrainer(Net(configure), strategy=Scaling(skipped=(0, 2)), max_steps=3)
    trainer.fit(Sized(make_batches(8)))
    assert trainer.strategy.num_asked == 5
    assert trainer.fit_loop.optimization.optimizers[0].param_groups[0]["lr"] == 1.0 * 0.5**3


def test_what_a_strategy_learned_is_in_the_checkpoint_and_comes_back() -> None:
    first = BareTrainer(Net(), strategy=Scaling(), callbacks=[hooked(on_train_epoch_end=save)], max_epochs=1)
    first.fit(Sized(make_batches(3)))
    checkpoint = first.load("x")
    assert checkpoint["strategy"] == {"num_asked": 3}
    second = BareTrainer(Net(), strategy=Scaling(), max_epochs=2)
    second.fit(Sized(make_batches(3)), checkpoint=checkpoint)
    assert second.strategy.num_asked == 6
    third = BareTrainer(Net(), max_epochs=2)  # a strategy that learns nothing takes no notice
    assert third.fit(Sized(make_batches(3)), checkpoint=checkpoint).global_step == 6


def test_a_strategy_that_lacks_something_is_told_what_before_anything_runs() -> None:
    class Old:
        device, global_rank, local_rank, world_size = torch.device("cpu"), 0, 0, 1

    called: list[str] = []
    callback = hooked(setup=lambda *_: called.append("setup"))
    rule = r"`strategy` must be a strategy \(missing: has_skipped_step, .* in fit\. .*StrategyDefaults"
    with pytest.raises(TypeError, match=rule):
        BareTrainer(Net(), callbacks=[callback], strategy=Old(), max_epochs=1).fit(Sized(make_batches(1)))
    assert called == []
