from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from bare_parts import BareStrategy, Batch, Net, Sized, hooked, make_batches, same_bits, seeded, weights
from compat_parts import BareTrainer, Regression, quiet_trainer
from torch import Tensor, nn
from trainer_parts import loader

from camshaft.callbacks import ModelSummary
from camshaft.compat.eras import extend
from camshaft.loops import Run
from camshaft.loops.lifecycle import prepare_data


def fit(module: Any, **arguments: Any) -> BareTrainer:
    arguments = {"max_epochs": 1, "limit_val_batches": 0, **arguments}
    return BareTrainer(module, **arguments).fit(Sized(make_batches(2)))


class SeveralProcesses(BareStrategy):
    """Says that it is one process of two."""

    def __init__(self, global_rank: int = 0, local_rank: int = 0) -> None:
        super().__init__()
        self.global_rank, self.local_rank, self.world_size = global_rank, local_rank, 2
        self.num_barriers = 0

    def barrier(self) -> None:
        self.num_barriers += 1


# announcing


def test_what_was_found_is_printed_once_for_each_class(capsys: pytest.CaptureFixture[str]) -> None:
    class FoundOnce(Net):
        def training_epoch_end(self, outputs: list[Any]) -> None: ...

    for _ in range(2):
        fit(FoundOnce())
    printed = capsys.readouterr().out
    assert printed.count("FoundOnce is taken for a module of era 1.x") == 1 and "training_epoch_end(outputs)" in printed
    fit(Net())
    assert capsys.readouterr().out == ""


def test_only_the_first_process_prints(capsys: pytest.CaptureFixture[str]) -> None:
    class Elsewhere(Net):
        def training_epoch_end(self, outputs: list[Any]) -> None: ...

    class Second(BareStrategy):
        global_rank = 1

    fit(Elsewhere(), strategy=Second())
    assert "Elsewhere" not in capsys.readouterr().out


# preparing data


@pytest.mark.parametrize(
    ("era", "per_node", "ranks", "is_called"),
    [
        ("0.8", None, (0, 0), True),
        ("0.8", None, (1, 0), False),
        ("0.8", True, (1, 0), True),
        ("0.8", True, (1, 1), False),
        ("1.5", None, (1, 0), True),
        ("1.5", False, (1, 0), False),
        ("2.x", None, (1, 0), True),
        ("2.x", None, (1, 1), False),
    ],
)
def test_data_is_prepared_on_one_process(era: str, per_node: Any, ranks: tuple[int, int], is_called: bool) -> None:
    class Preparing(Net):
        hook_era = era
        num_calls = 0

        def prepare_data(self) -> None:
            self.num_calls += 1

    module = Preparing()
    if per_node is not None:
        module.prepare_data_per_node = per_node
    strategy = SeveralProcesses(*ranks)
    run = Run(verb="fit", module=module, strategy=strategy, trainer=None)
    extend(run)
    run.resolve_hooks(())
    prepare_data(run)
    assert module.num_calls == is_called and strategy.num_barriers == 1


# optimizers


class Initializing(Net):
    hook_era = "0.7"

    def init_optimizers(self, optimizers: Any) -> Any:
        self.given = optimizers
        own = torch.optim.SGD(self.parameters(), lr=0.5)
        return [own], [{"scheduler": torch.optim.lr_scheduler.StepLR(own, 1), "reduce_on_plateau": False}]


def test_optimizers_and_schedulers_are_those_that_init_optimizers_makes_of_what_was_configured() -> None:
    configured = []
    module = Initializing(lambda module: configured.append(torch.optim.Adam(module.parameters())) or configured[0])
    trainer = fit(module)
    assert module.given is configured[0]
    (optimizer,) = trainer.fit_loop.optimization.optimizers
    assert isinstance(optimizer, torch.optim.SGD) and optimizer.param_groups[0]["lr"] == pytest.approx(0.05)


def test_init_optimizers_may_give_frequencies() -> None:
    class InTurn(Net):
        hook_era = "0.8"

        def init_optimizers(self, optimizers: Any) -> Any:
            parts = [torch.optim.SGD(part.parameters(), lr=0.1) for part in (self.layer, self.head)]
            return parts, [], [2, 1]

        def training_step(self, batch: Batch, batch_idx: int, optimizer_idx: int) -> Tensor:
            self.turns = [*getattr(self, "turns", []), optimizer_idx]
            return self.loss(batch)

    module = InTurn()
    BareTrainer(module, max_epochs=1, limit_val_batches=0).fit(Sized(make_batches(6)))
    assert module.turns == [0, 0, 1, 0, 0, 1]


@pytest.mark.parametrize(
    ("returned", "error", "message"),
    [
        (
            None,
            TypeError,
            "`return value` must be the optimizers and the schedulers.*got None.*init_optimizers. Return a",
        ),
        (([], [], [1]), ValueError, r"`frequencies` must be one for each of the 0 optimizers, or none, but got \[1\]"),
    ],
)
def test_init_optimizers_that_returns_something_else_is_refused(returned: Any, error: Any, message: str) -> None:
    module = Initializing()
    module.init_optimizers = lambda optimizers: returned
    with pytest.raises(error, match=message):
        fit(module)


# summary and weights


def test_a_module_summarizes_itself_as_the_trainer_asks(capsys: pytest.CaptureFixture[str]) -> None:
    class Summarizing(Net):
        hook_era = "1.5"

        def summarize(self, mode: str) -> str:
            return f"summary: {mode}"

    fit(Summarizing())
    assert "summary: top" in capsys.readouterr().out
    for mode in ("full", None):
        trainer = BareTrainer(Summarizing(), max_epochs=1, limit_val_batches=0)
        trainer.weights_summary = mode
        trainer.fit(Sized(make_batches(1)))
        assert ("summary: full" in capsys.readouterr().out) == (mode == "full")


@pytest.mark.filterwarnings("ignore:There is a `validation_step`")
@pytest.mark.parametrize("is_own", [True, False])
def test_a_callback_leaves_the_summary_to_a_module_that_has_its_own(
    is_own: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    methods = {"hook_era": "1.5", "summarize": lambda module, mode: "my own"} if is_own else {}
    module = type("Summarizing", (Regression,), methods)()
    quiet_trainer(tmp_path, callbacks=[ModelSummary()], enable_model_summary=True, max_epochs=1).fit(module, loader(1))
    out = capsys.readouterr().out
    assert ("my own" in out, "trainable parameters" in out) == (is_own, not is_own)


class Restoring(Net):
    hook_era = "0.7"
    restored_from: Any = None

    def restore_weights(self, model: nn.Module) -> None:
        assert model is self
        if self.restored_from is not None:
            self.load_state_dict(self.restored_from)


def test_weights_are_restored_by_the_module_in_place_of_the_default() -> None:
    def save(trainer: Any, _: Any) -> None:
        trainer.save_checkpoint("end")

    first = fit(seeded(Restoring), callbacks=[hooked(on_train_epoch_end=save)])
    own = seeded(Restoring, seed=5)
    second = BareTrainer(own, max_epochs=1, limit_val_batches=0)
    before = weights(own)
    second.fit(Sized(make_batches(2)), None, first.load("end"))  # nothing is left to train
    assert same_bits(weights(own), before)
    own.restored_from = first.module.state_dict()
    BareTrainer(own, max_epochs=1, limit_val_batches=0).fit(Sized(make_batches(2)), None, first.load("end"))
    assert same_bits(weights(own), weights(first.module))


def test_set_up_runs_in_the_order_of_0_7() -> None:
    calls: list[str] = []

    def noting(name: str, value: Any = None) -> Any:
        def hook(*_: Any) -> Any:
            calls.append(name)
            return value() if callable(value) else value

        return hook

    module = Net()
    module.hook_era = "0.8"
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    module.configure_optimizers = noting("configure_optimizers", lambda: optimizer)
    module.init_optimizers = noting("init_optimizers", lambda: ([optimizer], []))
    module.train_dataloader = noting("train_dataloader", lambda: Sized(make_batches(1)))
    for name in ("summarize", "restore_weights", "on_fit_start", "on_train_start"):
        setattr(module, name, noting(name))
    BareTrainer(module, max_epochs=1, limit_val_batches=0).fit()
    assert calls == [
        "train_dataloader",
        "configure_optimizers",
        "init_optimizers",
        "summarize",
        "restore_weights",
        "on_fit_start",
        "on_train_start",
    ]


# joining and wrapping


class Wrapping(Net):
    hook_era = "0.8"

    def configure_ddp(self, model: Any, device_ids: Any) -> Any:
        raise AssertionError("the strategy wraps")


class Connecting(Net):
    hook_era = "0.8"

    def init_ddp_connection(self, proc_rank: int, world_size: int, is_slurm_managing_tasks: bool = True) -> None:
        raise AssertionError("the strategy connects")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            Wrapping,
            "`configure_ddp` must be left out with SeveralProcesses.*such as `find_unused_parameters=True`",
        ),
        (Connecting, "`init_ddp_connection` must be left out with SeveralProcesses.*such as `backend` or `timeout`"),
    ],
)
def test_overrides_for_several_processes_are_not_called_with_one_and_refused_without_a_place(
    make: Any, message: str
) -> None:
    fit(make())
    with pytest.raises(NotImplementedError, match=message):
        fit(make(), strategy=SeveralProcesses())
