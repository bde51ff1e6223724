"""Checkpoints of earlier releases: training goes on from them, and modules are built from them."""

from __future__ import annotations

import warnings
from argparse import Namespace
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from compat_parts import Regression
from torch import Tensor, nn
from trainer_parts import loader

from camshaft.callbacks import Callback, EarlyStopping, ModelCheckpoint
from camshaft.compat import DataModule, Trainer, TrainingModule
from camshaft.strategies.precision import ScaledPrecision

NUM_BATCHES = 4
SILENT = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "num_sanity_val_steps": 0}


class Line(TrainingModule):
    """Adam, and a rate that halves after each epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1)
        self.rates: list[float] = []
        self.epochs: list[int] = []

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        if batch_idx == 0:
            self.rates.append(self.trainer.optimizers[0].param_groups[0]["lr"])
            self.epochs.append(self.current_epoch)
        return nn.functional.mse_loss(self.layer(batch[0]), batch[1])

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.log("val_loss", nn.functional.mse_loss(self.layer(batch[0]), batch[1]))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), lr=0.1)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)]


def line(seed: int = 0) -> Line:
    torch.manual_seed(seed)
    return Line()


def trained_by_hand(num_batches: int, num_scheduler_steps: int) -> dict[str, Any]:
    """What a release saved beside its counters, after so many batches of four an epoch."""
    module = line()
    optimizer = torch.optim.Adam(module.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    for idx in range(num_batches):
        inputs, targets = list(loader(NUM_BATCHES))[idx % NUM_BATCHES]
        optimizer.zero_grad()
        nn.functional.mse_loss(module.layer(inputs), targets).backward()
        optimizer.step()
        if (idx + 1) % NUM_BATCHES == 0 and scheduler.last_epoch < num_scheduler_steps:
            scheduler.step()
    states = {"optimizer_states": [optimizer.state_dict()], "lr_schedulers": [scheduler.state_dict()]}
    return {"state_dict": module.state_dict(), **states}


def loops_of_2(num_epochs: int, num_ready: int, in_epoch: int, *, is_last: bool, total: int) -> dict[str, Any]:
    current = {"ready": in_epoch, "completed": in_epoch, "started": in_epoch, "processed": in_epoch}
    return {
        "fit_loop": {
            "epoch_progress": {"current": {"ready": num_ready, "completed": num_epochs}},
            "epoch_loop.batch_progress": {"total": {"ready": total}, "current": current, "is_last_batch": is_last},
        }
    }


AT_END = {
    "before-0.7": {"epoch": 1, "global_step": 7},
    "0.7": {"epoch": 2, "global_step": 8, "hparams_type": "dict", "hparams": {}},
    "0.7-without-hparams": {"epoch": 2, "global_step": 8},
    "0.9.0": {"epoch": 2, "global_step": 8, "pytorch-lightning_version": "0.9.0"},
    "1.2.10": {"epoch": 2, "global_step": 8, "pytorch-lightning_version": "1.2.10", "callbacks": {}},
    "1.5.10": {"epoch": 2, "global_step": 8, "pytorch-lightning_version": "1.5.10", "callbacks": {}},
    "1.9.5": {
        "epoch": 1,
        "global_step": 8,
        "pytorch-lightning_version": "1.9.5",
        "loops": loops_of_2(1, 2, 4, is_last=True, total=8),
    },
    "2.6.6": {
        "epoch": 2,
        "global_step": 8,
        "pytorch-lightning_version": "2.6.6",
        "loops": loops_of_2(2, 2, 4, is_last=True, total=8),
    },
}
"""The counters of each release after two epochs of four batches."""

WITHIN = {
    "before-0.7": ({"epoch": 1, "global_step": 5}, 1),
    "1.2.10": ({"epoch": 2, "global_step": 6, "pytorch-lightning_version": "1.2.10"}, 1),
    "2.6.6": (
        {
            "epoch": 1,
            "global_step": 6,
            "pytorch-lightning_version": "2.6.6",
            "loops": loops_of_2(1, 2, 2, is_last=False, total=6),
        },
        1,
    ),
}
"""The counters of releases after one and a half epochs, and the epoch that begins anew."""


def save(tmp_path: Path, checkpoint: dict[str, Any]) -> Path:
    torch.save(checkpoint, tmp_path / "old.ckpt")
    return tmp_path / "old.ckpt"


def resume(path: Path, tmp_path: Path, module: nn.Module | None = None, **arguments: Any) -> tuple[Any, Trainer]:
    module = module if module is not None else line(seed=1)
    options = {"max_epochs": 4, "default_root_dir": tmp_path, "callbacks": [], "limit_val_batches": 0}
    trainer = Trainer(**SILENT | options | arguments)
    trainer.fit(module, loader(NUM_BATCHES), loader(1), ckpt_path=path)
    return module, trainer


@pytest.mark.parametrize("release", AT_END)
@pytest.mark.parametrize("num_scheduler_steps", [1, 2], ids=["before-the-scheduler", "after-the-scheduler"])
def test_training_goes_on_as_if_it_had_not_stopped(release: str, num_scheduler_steps: int, tmp_path: Path) -> None:
    checkpoint = {**AT_END[release], **trained_by_hand(8, num_scheduler_steps)}
    with pytest.warns(UserWarning, match="goes on after 2 epochs and 8 updates") as caught:
        module, trainer = resume(save(tmp_path, checkpoint), tmp_path)
    assert not [one for one in caught if "is of" not in str(one.message)]
    straight = line()
    Trainer(**SILENT, max_epochs=4, limit_val_batches=0, default_root_dir=tmp_path, callbacks=[]).fit(
        straight, loader(NUM_BATCHES)
    )
    assert module.epochs == [2, 3]
    assert module.rates == straight.rates[2:] == [0.025, 0.0125]
    assert (trainer.current_epoch, trainer.global_step) == (4, 16)
    for name, value in straight.state_dict().items():
        assert torch.allclose(module.state_dict()[name], value, atol=1e-6)


@pytest.mark.parametrize("release", WITHIN)
def test_an_epoch_that_was_not_over_begins_anew_with_a_warning(release: str, tmp_path: Path) -> None:
    counters, epoch = WITHIN[release]
    path = save(tmp_path, {**counters, **trained_by_hand(6, 1)})
    with pytest.warns(UserWarning, match=f"saved inside of epoch {epoch}.*begins anew"):
        module, trainer = resume(path, tmp_path)
    assert module.epochs == [1, 2, 3]
    assert module.rates == [0.05, 0.025, 0.0125]
    assert trainer.global_step == 6 + 3 * NUM_BATCHES


def test_what_was_resumed_is_saved_as_a_checkpoint_of_today(tmp_path: Path) -> None:
    path = save(tmp_path, {**AT_END["1.5.10"], **trained_by_hand(8, 2)})
    with pytest.warns(UserWarning, match=r"release 1\.5\.10"):
        _, trainer = resume(path, tmp_path, max_epochs=3)
    trainer.save_checkpoint(tmp_path / "new.ckpt")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        module, trainer = resume(tmp_path / "new.ckpt", tmp_path)
    assert module.epochs == [3]
    assert trainer.global_step == 16


@pytest.mark.parametrize("release", ["before-0.7", "1.5.10"])
def test_one_with_nothing_left_to_train_is_kept_as_it_is(release: str, tmp_path: Path) -> None:
    checkpoint = {**AT_END[release], **trained_by_hand(8, 1)}
    with pytest.warns(UserWarning, match="goes on after 2 epochs"):
        module, trainer = resume(save(tmp_path, checkpoint), tmp_path, max_epochs=2)
    assert module.epochs == []
    trainer.save_checkpoint(tmp_path / "new.ckpt")
    assert torch.equal(module.layer.weight, checkpoint["state_dict"]["layer.weight"])
    module, _ = resume(tmp_path / "new.ckpt", tmp_path, max_epochs=3)
    assert (module.epochs, module.rates) == ([2], [0.025])


def test_schedulers_that_lagged_before_0_7_get_the_step_that_was_due(tmp_path: Path) -> None:
    path = save(tmp_path, {**AT_END["before-0.7"], **trained_by_hand(8, 0)})
    with pytest.warns(UserWarning, match="goes on after 2 epochs"):
        module, _ = resume(path, tmp_path, max_epochs=3)
    assert module.rates == [0.05]  # what that release would have trained this epoch with


class Pair(TrainingModule):
    """Two optimizers by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.one, self.other = nn.Linear(3, 1), nn.Linear(3, 1)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> None:
        for optimizer, layer in zip(self.optimizers(), (self.one, self.other), strict=True):
            loss = layer(batch[0]).pow(2).mean()
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()

    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.5) for layer in (self.one, self.other)]


@pytest.mark.parametrize(("release", "global_step"), [("1.5.10", 8), ("1.9.5", 16)])
def test_several_optimizers_are_restored_and_their_steps_counted_once(
    release: str, global_step: int, tmp_path: Path
) -> None:
    old = Pair()
    optimizers = old.configure_optimizers()
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                optimizer.state[parameter]["momentum_buffer"] = torch.full_like(parameter, 3.0)
    states = [optimizer.state_dict() for optimizer in optimizers]
    rest = {"state_dict": old.state_dict(), "optimizer_states": states, "lr_schedulers": []}
    path = save(tmp_path, {**AT_END[release], "global_step": global_step, **rest})
    found: list[float] = []

    class Looks(Callback):
        def on_train_start(self, trainer: Any, module: Any) -> None:
            assert trainer.global_step == 8
            for optimizer in trainer.optimizers:
                found.extend(float(state["momentum_buffer"].max()) for state in optimizer.state.values())

    with pytest.warns(UserWarning, match="after 2 epochs and 8 updates"):
        resume(path, tmp_path, Pair(), callbacks=[Looks()])
    assert found == [3.0] * 4


@pytest.mark.parametrize(
    "saved",
    [
        {"checkpoint_callback_best": torch.tensor(0.25), "early_stop_callback_wait": 2},
        {"checkpoint_callback_best_model_score": 0.25, "early_stop_callback_state_dict": {"wait_count": 2}},
        {"callbacks": {"EarlyStopping": {"wait_count": 2, "best_score": 0.0}}},
        {"callbacks": {"EarlyStopping{'monitor': 'val_loss', 'mode': 'min'}": {"wait_count": 2}}},
    ],
    ids=["0.7", "0.8", "1.4", "1.5"],
)
def test_early_stopping_goes_on_waiting(saved: dict[str, Any], tmp_path: Path) -> None:
    path = save(tmp_path, {**AT_END["0.9.0"], **trained_by_hand(8, 2), **saved})
    stopping = EarlyStopping("val_loss", patience=3)
    seen: list[int] = []

    class Looks(Callback):
        def on_train_start(self, trainer: Any, module: Any) -> None:
            seen.append(stopping.wait_count)

    with pytest.warns(UserWarning, match="goes on after 2 epochs"):
        resume(path, tmp_path, callbacks=[stopping, Looks()], limit_val_batches=1)
    assert seen == [2]


def test_the_best_checkpoint_is_known_and_other_callbacks_are_named(tmp_path: Path) -> None:
    best = tmp_path / "best.ckpt"
    key = "ModelCheckpoint{'monitor': 'val_loss', 'mode': 'min', 'train_time_interval': None}"
    callbacks = {
        key: {"best_model_path": str(best), "best_model_score": torch.tensor(-1.0), "dirpath": str(tmp_path)},
        "EarlyStopping{'monitor': 'accuracy', 'mode': 'max'}": {"wait_count": 2},
        "Averages": {"decay": 0.5},
        "Counting": {"count": 5},
    }
    path = save(tmp_path, {**AT_END["2.6.6"], **trained_by_hand(8, 2), "callbacks": callbacks})
    best.write_bytes(path.read_bytes())

    class Counting(Callback):
        count = 0

        def state_dict(self) -> dict[str, Any]:
            return {"count": self.count}

        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            self.count = state_dict["count"]

    Counting.__qualname__ = "Counting"
    counting, checkpoints = Counting(), ModelCheckpoint(tmp_path, monitor="val_loss")
    with pytest.warns(UserWarning, match=r"remembered is left out for EarlyStopping, Averages\."):
        resume(path, tmp_path, callbacks=[checkpoints, counting, EarlyStopping("val_loss")], limit_val_batches=1)
    assert counting.count == 5
    assert checkpoints.best_model_path == str(best)
    assert checkpoints.best_model_score == -1


def test_a_data_module_gets_what_it_remembered(tmp_path: Path) -> None:
    class Remembers(DataModule):
        place = 0

        def train_dataloader(self) -> Any:
            return loader(NUM_BATCHES)

        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            self.place = state_dict["place"]

    Remembers.__qualname__ = "Remembers"
    path = save(tmp_path, {**AT_END["2.6.6"], **trained_by_hand(8, 2), "Remembers": {"place": 3}})
    data = Remembers()
    trainer = Trainer(**SILENT, max_epochs=3, limit_val_batches=0, default_root_dir=tmp_path, callbacks=[])
    with pytest.warns(UserWarning, match="goes on after 2 epochs"):
        trainer.fit(line(), datamodule=data, ckpt_path=path)
    assert data.place == 3


SCALER = {"scale": 512.0, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 2000, "_growth_tracker": 3}


@pytest.mark.parametrize(
    "saved",
    [
        {"native_amp_scaling_state": SCALER},
        {"NativeMixedPrecisionPlugin": SCALER},
        {"MixedPrecision": SCALER},
        {"amp_scaling_state": {"loss_scaler0": {"loss_scale": 512.0, "unskipped": 3}}},
    ],
    ids=["0.8-to-1.5", "1.6", "2.x", "apex"],
)
def test_the_gradient_scale_goes_on(saved: dict[str, Any], tmp_path: Path) -> None:
    path = save(tmp_path, {**AT_END["1.2.10"], **trained_by_hand(8, 2), **saved})
    states: list[dict[str, Any]] = []

    class Looks(Callback):
        def on_train_start(self, trainer: Any, module: Any) -> None:
            states.append(trainer.strategy.state_dict()["gradient_scaler"])

    with pytest.warns(UserWarning, match="goes on after 2 epochs"):
        resume(path, tmp_path, callbacks=[Looks()], precision=ScaledPrecision("cpu"), accelerator="cpu", max_epochs=3)
    assert states == [SCALER]


def test_a_scheduler_that_was_not_saved_begins_anew(tmp_path: Path) -> None:
    class Plateau(Line):
        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.Adam(self.parameters(), lr=0.1)
            plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": plateau, "monitor": "val_loss"}}

    path = save(tmp_path, {**AT_END["before-0.7"], **trained_by_hand(8, 1), "lr_schedulers": []})
    with pytest.warns(UserWarning, match="no state of ReduceLROnPlateau, which begins anew"):
        resume(path, tmp_path, Plateau(), limit_val_batches=1)


def test_a_scheduler_of_an_early_torch_tells_the_rate_that_is_used(tmp_path: Path) -> None:
    checkpoint = trained_by_hand(8, 2)
    del checkpoint["lr_schedulers"][0]["_last_lr"]
    rates: list[float] = []

    class Looks(Callback):
        def on_train_start(self, trainer: Any, module: Any) -> None:
            rates.extend(trainer.lr_scheduler_configs[0].scheduler.get_last_lr())

    path = save(tmp_path, {**AT_END["0.7"], **checkpoint})
    with pytest.warns(UserWarning, match="goes on after 2 epochs"):
        resume(path, tmp_path, callbacks=[Looks()])
    assert rates == [0.025]


def test_loaders_with_generators_of_their_own_go_on_with_them(tmp_path: Path) -> None:
    path = save(tmp_path, {**AT_END["1.5.10"], **trained_by_hand(8, 2)})
    train = torch.utils.data.DataLoader(
        loader(NUM_BATCHES).dataset, batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(3)
    )
    module = line(1)
    trainer = Trainer(**SILENT, max_epochs=3, limit_val_batches=0, default_root_dir=tmp_path, callbacks=[])
    with pytest.warns(UserWarning, match="goes on after 2 epochs"):
        trainer.fit(module, train, ckpt_path=path)
    assert module.epochs == [2]


def test_weights_alone_are_refused_by_fit_and_taken_by_other_verbs(tmp_path: Path) -> None:
    path = save(tmp_path, {**AT_END["1.5.10"], "state_dict": trained_by_hand(8, 2)["state_dict"]})
    with pytest.raises(ValueError, match="missing: optimizer_states, lr_schedulers"):
        resume(path, tmp_path)
    module = line(1)
    trainer = Trainer(**SILENT, default_root_dir=tmp_path, callbacks=[])
    trainer.validate(module, loader(1), ckpt_path=path, verbose=False)
    assert torch.equal(module.layer.weight, torch.load(path)["state_dict"]["layer.weight"])


@pytest.mark.parametrize("prefix", ["module.", "model.module.", "_forward_module."])
def test_the_prefix_of_a_wrapper_is_left_out_where_all_names_have_it(prefix: str, tmp_path: Path) -> None:
    weights = OrderedDict((prefix + name, value) for name, value in line().state_dict().items())
    path = save(tmp_path, {**AT_END["0.7-without-hparams"], "state_dict": weights})
    with pytest.warns(UserWarning, match=rf"have '{prefix}' in them"):
        module = Line.load_from_checkpoint(path)
    assert torch.equal(module.layer.weight, weights[prefix + "layer.weight"])
    trainer = Trainer(**SILENT, default_root_dir=tmp_path, callbacks=[])
    module = line(1)
    with pytest.warns(UserWarning, match=rf"have '{prefix}' in them"):
        trainer.validate(module, loader(1), ckpt_path=path, verbose=False)
    assert torch.equal(module.layer.weight, weights[prefix + "layer.weight"])


def test_names_that_are_no_wrappers_stay_as_they_are(tmp_path: Path) -> None:
    weights = OrderedDict(line().state_dict())
    weights["module.layer.weight"] = weights.pop("layer.weight")
    path = save(tmp_path, {**AT_END["0.7-without-hparams"], "state_dict": weights})
    with pytest.raises(RuntimeError, match=r"module\.layer\.weight"):
        Line.load_from_checkpoint(path)


class ByHparams(TrainingModule):
    def __init__(self, hparams: Any, extra: int = 0) -> None:
        super().__init__()
        self.given, self.extra = hparams, extra
        self.layer = nn.Linear(hparams["width"] if isinstance(hparams, dict) else hparams.width, 1)


class ByConfig(TrainingModule):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.given = config
        self.layer = nn.Linear(config.width, 1)


class ByKeywords(TrainingModule):
    def __init__(self, width: int = 1, depth: int = 2) -> None:
        super().__init__()
        self.given = {"width": width, "depth": depth}
        self.layer = nn.Linear(width, 1)


def built(cls: Any, tmp_path: Path, saved: dict[str, Any], **arguments: Any) -> Any:
    path = save(tmp_path, {"epoch": 1, "global_step": 4, "state_dict": nn.Linear(5, 1).state_dict(), **saved})
    checkpoint = torch.load(path, weights_only=False)
    checkpoint["state_dict"] = OrderedDict((f"layer.{key}", value) for key, value in checkpoint["state_dict"].items())
    torch.save(checkpoint, path)
    return cls.load_from_checkpoint(path, **arguments)


SAVED = {"width": 5, "depth": 3}


def test_hparams_before_0_8_are_a_namespace_again(tmp_path: Path) -> None:
    for saved in ({"hparams": SAVED}, {"hparams": SAVED, "hparams_type": "Namespace"}, {"hparams": Namespace(**SAVED)}):
        assert built(ByHparams, tmp_path, saved).given == Namespace(**SAVED)
    assert built(ByConfig, tmp_path, {"hparams": SAVED}).given == Namespace(**SAVED)


def test_arguments_that_were_saved_before_0_8_are_arguments_again(tmp_path: Path) -> None:
    assert built(ByKeywords, tmp_path, {"module_arguments": SAVED}).given == SAVED


def test_hparams_that_were_a_dictionary_are_one(tmp_path: Path) -> None:
    assert built(ByHparams, tmp_path, {"hparams": SAVED, "hparams_type": "dict"}).given == SAVED


@pytest.mark.parametrize("version", ["0.9.0", "1.4.9", "2.6.6"])
def test_hyperparameters_take_the_form_that_their_name_tells(version: str, tmp_path: Path) -> None:
    saved = {"hyper_parameters": SAVED, "pytorch-lightning_version": version}
    given = built(ByHparams, tmp_path, {**saved, "hparams_name": "hparams"}).given
    assert given == SAVED
    assert given.depth == 3
    assert built(ByConfig, tmp_path, {**saved, "hparams_name": "config"}).given.width == 5
    assert built(ByKeywords, tmp_path, {**saved, "hparams_name": "kwargs"}).given == SAVED


def test_arguments_count_before_what_was_saved(tmp_path: Path) -> None:
    module = built(ByHparams, tmp_path, {"hparams": SAVED}, extra=7, depth=4)
    assert (module.given, module.extra) == (Namespace(width=5, depth=4), 7)
    assert built(ByHparams, tmp_path, {"hparams": SAVED}, hparams=Namespace(width=5)).given == Namespace(width=5)
    saved = {"hyper_parameters": SAVED, "pytorch-lightning_version": "1.0.8"}
    assert built(ByKeywords, tmp_path, saved, depth=9).given == {"width": 5, "depth": 9}


def test_hyperparameters_come_from_the_file_beside_a_checkpoint(tmp_path: Path) -> None:
    table = tmp_path / "meta_tags.csv"
    table.write_text("key,value\nwidth,5\ndepth,3\nname,a b\n", encoding="utf-8")
    given = built(ByHparams, tmp_path, {}, tags_csv=table).given
    assert dict(given) == {**SAVED, "name": "a b"}
    assert built(ByKeywords, tmp_path, {}, hparams_file=table).given == SAVED
    listed = tmp_path / "hparams.yaml"
    listed.write_text("".join(f"{name}: {value}\n" for name, value in SAVED.items()))
    assert built(ByKeywords, tmp_path, {}, hparams_file=listed).given == SAVED
    with pytest.raises(ValueError, match=r"`hparams_file` must be a file of \.yaml"):
        built(ByKeywords, tmp_path, {}, hparams_file=tmp_path / "hparams.txt")


def test_checkpoints_of_today_are_read_as_ever(tmp_path: Path) -> None:
    trainer = Trainer(**SILENT, max_epochs=1, limit_val_batches=0, default_root_dir=tmp_path, callbacks=[])
    trainer.fit(Regression(learning_rate=0.5), loader(NUM_BATCHES))
    trainer.save_checkpoint(tmp_path / "today.ckpt")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Regression.load_from_checkpoint(tmp_path / "today.ckpt").hparams.learning_rate == 0.5
