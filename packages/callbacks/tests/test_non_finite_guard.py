from __future__ import annotations

import math
import pickle
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from recording_trainer import OneProcess, RecordingTrainer, load_callback_state
from torch import Tensor, nn

from camshaft.callbacks.arguments import InvalidArgumentError
from camshaft.callbacks.monitors.loss_watch import LossWatch, gradient_norm, skip_update
from camshaft.callbacks.monitors.non_finite_guard import NonFiniteError, NonFiniteGuard
from camshaft.hooks_core.dispatch.implementation import is_overridden

NAN, INF = math.nan, math.inf


def trainer_with(root: Path, watch: LossWatch, **arguments: Any) -> RecordingTrainer:
    strategy = OneProcess()
    strategy.device = torch.device("cpu")
    return RecordingTrainer(str(root), callbacks=[watch], strategy=strategy, **arguments)


def feed(trainer: RecordingTrainer, watch: LossWatch, losses: list[Any], start: int = 0) -> None:
    for batch_idx, loss in enumerate(losses, start=start):
        outputs = torch.tensor(loss) if isinstance(loss, float) else loss
        watch.on_train_batch_end(trainer, None, outputs, None, batch_idx)


def test_a_loss_that_is_not_finite_raises_with_its_place(tmp_path: Path) -> None:
    guard = NonFiniteGuard()
    trainer = trainer_with(tmp_path, guard, current_epoch=2)
    guard.on_train_start(trainer, None)
    feed(trainer, guard, [1.0, {"loss": torch.tensor(2.0)}, None])
    with pytest.raises(NonFiniteError, match="The loss must be finite, but is nan in epoch 2, batch 3") as caught:
        feed(trainer, guard, [NAN], start=3)
    same = pickle.loads(pickle.dumps(caught.value))
    assert (same.what, same.epoch, same.batch_idx) == ("loss", 2, 3) and guard.num_bad == 1


@pytest.mark.parametrize("how", ["interval", "epoch", "checkpoint"])
def test_losses_are_looked_at_together_and_the_first_bad_one_is_named(tmp_path: Path, how: str) -> None:
    guard = NonFiniteGuard(check_every_n_batches=5)
    trainer = trainer_with(tmp_path, guard)
    guard.on_train_start(trainer, None)
    feed(trainer, guard, [1.0, 1.0, INF, NAN])  # nobody looks yet
    with pytest.raises(NonFiniteError, match="is inf in epoch 0, batch 2"):
        if how == "interval":
            feed(trainer, guard, [1.0], start=4)
        elif how == "epoch":
            guard.on_train_epoch_end(trainer, None)
        else:
            trainer.write(str(tmp_path / "poisoned.ckpt"))
    assert not (tmp_path / "poisoned.ckpt").exists()


def test_memory_that_a_step_uses_again_does_not_change_what_is_looked_at(tmp_path: Path) -> None:
    guard = NonFiniteGuard(check_every_n_batches=2)
    trainer = trainer_with(tmp_path, guard)
    guard.on_train_start(trainer, None)
    reused = torch.tensor(NAN)
    feed(trainer, guard, [reused])
    reused.fill_(1.0)
    with pytest.raises(NonFiniteError, match="batch 0"):
        feed(trainer, guard, [reused], start=1)


def test_an_emergency_checkpoint_is_made_all_the_same(tmp_path: Path) -> None:
    guard = NonFiniteGuard(check_every_n_batches=10)
    trainer = trainer_with(tmp_path, guard)
    guard.on_train_start(trainer, None)
    feed(trainer, guard, [NAN])
    try:
        raise ValueError("something else")
    except ValueError:
        trainer.write(str(tmp_path / "a.ckpt"))
    assert load_callback_state(tmp_path / "a.ckpt", guard) == {"update_loss": None, "num_bad": 0}


def test_stop_asks_the_trainer_to_stop(tmp_path: Path) -> None:
    guard = NonFiniteGuard("stop")
    trainer = trainer_with(tmp_path, guard)
    guard.on_train_start(trainer, None)
    feed(trainer, guard, [1.0])
    assert not trainer.should_stop
    with pytest.warns(RuntimeWarning, match="must be finite, but is nan in epoch 0, batch 1. Training stops."):
        feed(trainer, guard, [NAN], start=1)
    assert trainer.should_stop


def test_warn_warns_once_for_bad_batches_in_a_row(tmp_path: Path) -> None:
    guard = NonFiniteGuard("warn")
    trainer = trainer_with(tmp_path, guard)
    guard.on_train_start(trainer, None)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        feed(trainer, guard, [1.0, NAN, NAN, NAN, 1.0, INF])
    texts = [str(one.message) for one in caught]
    assert len(texts) == 2 and "batch 1" in texts[0] and "batch 5" in texts[1]
    assert guard.num_bad == 4 and not trainer.should_stop


def model_and_gradient(value: float) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Linear(2, 1)
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, value)
    return model, torch.optim.SGD(model.parameters(), 0.1)


def test_gradients_are_looked_at_if_asked_for(tmp_path: Path) -> None:
    guard = NonFiniteGuard(check_gradients=True, check_every_n_batches=2)
    trainer = trainer_with(tmp_path, guard)
    guard.on_train_start(trainer, None)
    for value in (1.0, NAN):
        guard.on_before_optimizer_step(trainer, None, model_and_gradient(value)[1])
        if value == 1.0:
            feed(trainer, guard, [1.0])
    with pytest.raises(NonFiniteError, match="The gradient norm must be finite, but is nan in epoch 0, batch 1"):
        feed(trainer, guard, [1.0], start=1)


def test_gradients_that_a_scaler_skips_are_none_of_its_business(tmp_path: Path) -> None:
    guard = NonFiniteGuard(check_gradients=True)
    trainer = trainer_with(tmp_path, guard)
    guard.on_train_start(trainer, None)
    guard.on_before_optimizer_step(trainer, None, model_and_gradient(INF)[1])
    trainer.strategy.has_skipped_step = True
    feed(trainer, guard, [1.0])
    guard.on_before_optimizer_step(trainer, None, model_and_gradient(INF)[1])  # one optimizer overflows,
    guard.on_before_optimizer_step(trainer, None, model_and_gradient(1.0)[1])  # the next does not
    trainer.strategy.has_skipped_step = False
    feed(trainer, guard, [1.0], start=1)
    assert guard.num_bad == 0


def test_the_norm_is_that_of_all_gradients_dense_or_sparse() -> None:
    embedding, layer = nn.Embedding(4, 3, sparse=True), nn.Linear(3, 1)
    layer(embedding(torch.tensor([1, 1, 2]))).sum().backward()
    optimizer = torch.optim.SGD([*embedding.parameters(), *layer.parameters()], 0.1)
    parts = [p.grad.to_dense().flatten() for p in optimizer.param_groups[0]["params"]]  # type: ignore[union-attr]
    norm = gradient_norm(optimizer)
    assert norm is not None and torch.allclose(norm, torch.cat(parts).norm())
    skip_update(optimizer)
    assert gradient_norm(optimizer) is None


OPTIMIZERS: list[tuple[type[torch.optim.Optimizer], dict[str, Any]]] = [
    (torch.optim.SGD, {"momentum": 0.9, "weight_decay": 0.1}),
    (torch.optim.SGD, {"momentum": 0.9, "weight_decay": 0.1, "fused": True}),
    (torch.optim.Adam, {"weight_decay": 0.1, "amsgrad": True}),
    (torch.optim.AdamW, {"weight_decay": 0.1, "foreach": True}),
    (torch.optim.AdamW, {"weight_decay": 0.1, "fused": True}),
    (torch.optim.NAdam, {"weight_decay": 0.1}),
    (torch.optim.RAdam, {"weight_decay": 0.1}),
    (torch.optim.Adamax, {"weight_decay": 0.1}),
    (torch.optim.Adadelta, {"weight_decay": 0.1}),
    (torch.optim.Adagrad, {"weight_decay": 0.1}),
    (torch.optim.RMSprop, {"weight_decay": 0.1, "momentum": 0.9}),
    (torch.optim.Rprop, {}),
    (torch.optim.ASGD, {"weight_decay": 0.1}),
    (torch.optim.Adafactor, {"weight_decay": 0.1}),
]


@pytest.mark.parametrize(("kind", "options"), OPTIMIZERS, ids=lambda one: getattr(one, "__name__", ""))
def test_a_skipped_update_leaves_weights_and_optimizer_state_as_they_were(
    tmp_path: Path, kind: type[torch.optim.Optimizer], options: dict[str, Any]
) -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = kind(model.parameters(), lr=0.1, **options)  # type: ignore[call-arg]
    guard = NonFiniteGuard("skip")
    trainer = trainer_with(tmp_path, guard, optimizers=[optimizer])
    guard.on_train_start(trainer, model)

    def step(scale: float) -> None:
        optimizer.zero_grad()
        loss = (model(torch.ones(4, 3)) * scale).sum()
        guard.on_before_backward(trainer, model, loss)
        loss.backward()
        guard.on_before_optimizer_step(trainer, model, optimizer)
        optimizer.step()

    def everything() -> list[Tensor]:
        states = [value for state in optimizer.state.values() for value in state.values() if torch.is_tensor(value)]
        return [value.detach().clone() for value in (*model.parameters(), *states)]

    step(1.0)
    before = everything()
    with pytest.warns(RuntimeWarning, match="The update is left out"):
        step(NAN)
    assert all(torch.equal(a, b) for a, b in zip(everything(), before, strict=True)) and guard.num_bad == 1
    step(1.0)
    assert not all(torch.equal(a, b) for a, b in zip(everything(), before, strict=True)) and guard.num_bad == 1


def test_skipping_looks_at_the_mean_loss_of_the_accumulation_window_also_across_a_resume(tmp_path: Path) -> None:
    model, optimizer = model_and_gradient(1.0)
    guard = NonFiniteGuard("skip")
    trainer = trainer_with(tmp_path, guard, optimizers=[optimizer])
    guard.on_train_start(trainer, model)
    guard.on_before_backward(trainer, model, torch.tensor(NAN, requires_grad=True))
    trainer.write(str(tmp_path / "a.ckpt"))
    resumed = NonFiniteGuard("skip")
    resumed.load_state_dict(load_callback_state(tmp_path / "a.ckpt", resumed))
    resumed.on_train_start(trainer, model)
    resumed.on_before_backward(trainer, model, torch.tensor(1.0))
    with pytest.warns(RuntimeWarning, match="left out"):
        resumed.on_before_optimizer_step(trainer, model, optimizer)
    assert gradient_norm(optimizer) is None


def test_skipping_looks_at_gradients_too(tmp_path: Path) -> None:
    model, optimizer = model_and_gradient(INF)
    guard = NonFiniteGuard("skip", check_loss=False, check_gradients=True)
    trainer = trainer_with(tmp_path, guard, optimizers=[optimizer])
    guard.on_train_start(trainer, model)
    with pytest.warns(RuntimeWarning, match="The gradient norm must be finite, but is inf"):
        guard.on_before_optimizer_step(trainer, model, optimizer)
    assert gradient_norm(optimizer) is None


def test_skip_is_refused_where_it_cannot_be_obeyed(tmp_path: Path) -> None:
    guard = NonFiniteGuard("skip")
    parameters = list(nn.Linear(1, 1).parameters())
    two = [torch.optim.SGD([parameter], 0.1) for parameter in parameters]
    with pytest.raises(InvalidArgumentError, match='`number of optimizers` must be one with action="skip"'):
        guard.on_train_start(trainer_with(tmp_path, guard, optimizers=two), None)
    with pytest.raises(InvalidArgumentError, match="`optimizer` must be one that does not evaluate the loss itself"):
        guard.on_train_start(trainer_with(tmp_path, guard, optimizers=[torch.optim.LBFGS(parameters)]), None)


def test_hooks_that_the_arguments_do_not_need_are_not_there() -> None:
    assert not is_overridden(NonFiniteGuard(), "on_before_optimizer_step")
    assert not is_overridden(NonFiniteGuard(), "on_before_backward")
    assert is_overridden(NonFiniteGuard(check_gradients=True), "on_before_optimizer_step")
    assert is_overridden(NonFiniteGuard("skip"), "on_before_backward")


def test_a_training_step_without_loss_is_told_of(tmp_path: Path) -> None:
    guard = NonFiniteGuard()
    trainer = trainer_with(tmp_path, guard)
    guard.on_train_start(trainer, None)
    feed(trainer, guard, [None, None])
    with pytest.warns(UserWarning, match="NonFiniteGuard has checked nothing in this epoch"):
        guard.on_train_epoch_end(trainer, None)


@pytest.mark.parametrize(
    ("field", "arguments"),
    [
        ("action", {"action": "ignore"}),
        ("check_every_n_batches", {"check_every_n_batches": 0}),
        ("check_every_n_batches", {"action": "skip", "check_every_n_batches": 2}),
        ("check_gradients", {"check_loss": False}),
    ],
)
def test_arguments_out_of_range_are_refused(field: str, arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError, match=f"`{field}` must be"):
        NonFiniteGuard(**arguments)


def test_the_losses_of_several_optimizers_are_looked_at_together(tmp_path: Path) -> None:
    guard = NonFiniteGuard()
    trainer = trainer_with(tmp_path, guard)
    guard.on_train_start(trainer, None)
    feed(trainer, guard, [[{"loss": torch.tensor(1.0)}, {"loss": torch.tensor(2.0)}], []])
    with pytest.raises(NonFiniteError, match="batch 2"):
        feed(trainer, guard, [[{"loss": torch.tensor(1.0)}, torch.tensor(NAN)]], start=2)


def test_a_loss_that_is_no_scalar_is_refused(tmp_path: Path) -> None:
    guard = NonFiniteGuard()
    trainer = trainer_with(tmp_path, guard)
    guard.on_train_start(trainer, None)
    with pytest.raises(InvalidArgumentError, match=r"`loss` must be a scalar, but got \(2,\)"):
        feed(trainer, guard, [torch.ones(2)])
