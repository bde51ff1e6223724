from __future__ import annotations

import inspect
import io
import os
import re
import warnings
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from compat_parts import Regression, quiet_trainer
from hypothesis import given
from hypothesis import strategies as st
from import_names_parts import names_of_earlier_code
from trainer_parts import NO_VALIDATION, loader

import camshaft.callbacks as ours
from camshaft.callbacks import CSVLogger
from camshaft.compat import Trainer
from camshaft.compat.names.trainer.callbacks import (
    AdvancedProfiler,
    EarlyStopping,
    PyTorchProfiler,
    SimpleProfiler,
    StochasticWeightAveraging,
)
from camshaft.compat.names.trainer.model_checkpoint import ModelCheckpoint
from camshaft.compat.names.trainer.progress_bars import ProgressBar, TQDMProgressBar
from camshaft.compat.names.trainer.rich_progress_bar import RichProgressBar
from camshaft.hooks_core import CATALOGUE, Callback, HookFaultWarning


def make(cls: type, *args: Any, **kwargs: Any) -> tuple[Any, str]:
    """An object, and the notes that making it gave."""
    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always")
        made = cls(*args, **kwargs)
    return made, "\n".join(str(note.message) for note in notes)


# checkpoints


def test_a_filepath_is_a_folder_and_a_name(tmp_path: Path) -> None:
    checkpoint, notes = make(ModelCheckpoint, filepath=tmp_path / "sub" / "{epoch}-{loss:.2f}", monitor="loss")
    assert checkpoint.dirpath == str(tmp_path / "sub")
    assert checkpoint.filename == "{epoch}-{loss:.2f}"
    assert "filepath=" in notes and "`dirpath=" in notes


def test_a_filepath_that_is_a_folder_is_the_folder(tmp_path: Path) -> None:
    checkpoint, _ = make(ModelCheckpoint, filepath=tmp_path, monitor="loss")
    assert (checkpoint.dirpath, checkpoint.filename) == (str(tmp_path), None)


def test_a_first_argument_is_a_folder_unless_it_has_places_for_metrics(tmp_path: Path) -> None:
    folder, notes = make(ModelCheckpoint, str(tmp_path / "new"))
    assert folder.dirpath == str(tmp_path / "new") and "the folder `dirpath`" in notes
    existing, notes = make(ModelCheckpoint, str(tmp_path))
    assert existing.dirpath == str(tmp_path) and not notes
    name, _ = make(ModelCheckpoint, str(tmp_path / "{epoch}"), monitor="loss")
    assert (name.dirpath, name.filename) == (str(tmp_path), "{epoch}")


def test_folder_and_name_may_be_the_first_two_arguments(tmp_path: Path) -> None:
    checkpoint, notes = make(ModelCheckpoint, tmp_path, "best-{step}")
    assert (checkpoint.dirpath, checkpoint.filename, notes) == (str(tmp_path), "best-{step}", "")


def test_a_second_argument_that_may_be_two_things_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"up to 1\.1 the second was `monitor`, and `filename` later"):
        ModelCheckpoint(tmp_path, "val_loss")
    with pytest.raises(TypeError, match="`args` must be given by name after the first one"):
        ModelCheckpoint(tmp_path, "val_loss", "{epoch}")
    with pytest.raises(TypeError, match="`args` must be given by name after the first one"):
        ModelCheckpoint(tmp_path, None, "loss", False, None, 1, False)  # save_weights_only, or save_on_exception
    checkpoint = ModelCheckpoint(tmp_path, "{epoch}-{val_loss:.2f}", "val_loss", True, "link", 3)
    assert (checkpoint.filename, checkpoint.monitor, checkpoint.verbose) == ("{epoch}-{val_loss:.2f}", "val_loss", True)
    assert (checkpoint.save_last, checkpoint.save_top_k) == ("link", 3)


@pytest.mark.parametrize(("release", "every"), [({"filepath": "folder/name"}, 1), ({}, 0)], ids=["0.9", "1.0"])
def test_a_period_below_one_is_every_validation_up_to_0_9_and_none_later(release: Any, every: int) -> None:
    checkpoint, notes = make(ModelCheckpoint, monitor="val_loss", period=-1, **release)
    assert checkpoint.every_n_epochs == every
    assert f"period=-1 is taken as `every_n_epochs={every}`" in "".join(notes)


@pytest.mark.parametrize("name", ["period", "every_n_val_epochs"])
def test_earlier_names_of_the_rhythm_are_epochs(name: str) -> None:
    checkpoint, _ = make(ModelCheckpoint, **{name: 3})
    assert checkpoint.every_n_epochs == checkpoint.period == 3


def test_two_rhythms_are_refused() -> None:
    with pytest.raises(ValueError, match="`every_n_epochs` must be left out, since `period` is given"):
        ModelCheckpoint(period=2, every_n_epochs=3)


@pytest.mark.parametrize(("given", "kept"), [(True, 1), (False, 0), (None, 1)])
def test_save_top_k_as_a_flag_keeps_the_best_or_none(given: bool | None, kept: int) -> None:
    checkpoint, _ = make(ModelCheckpoint, monitor="loss", mode="min", save_top_k=given)
    assert checkpoint.save_top_k is kept


@pytest.mark.parametrize(("best_only", "save_top_k"), [(True, 1), (False, -1)])
def test_only_the_best_or_all_are_kept(best_only: bool, save_top_k: int) -> None:
    checkpoint, notes = make(ModelCheckpoint, save_best_only=best_only, monitor="loss")
    assert checkpoint.save_top_k == save_top_k and "save_best_only" in notes


def test_a_prefix_begins_the_name() -> None:
    checkpoint, notes = make(ModelCheckpoint, prefix="net", monitor=None)
    assert checkpoint.filename == "net-{epoch}" and "prefix='net'" in notes


def test_the_metric_of_0_x_is_watched_where_arguments_are_of_0_x_and_only_there() -> None:
    old, notes = make(ModelCheckpoint, filepath="a/b")
    assert old.monitor == "val_loss" and "as up to 0.9" in notes
    several, _ = make(ModelCheckpoint, save_top_k=3)
    assert several.monitor == "val_loss"
    new, notes = make(ModelCheckpoint, dirpath="a")
    assert new.monitor is None and not notes
    explicit, _ = make(ModelCheckpoint, filepath="a/b", monitor=None)
    assert explicit.monitor is None


@pytest.mark.parametrize(("monitor", "mode"), [("val_loss", "min"), ("val_acc", "max"), ("fmeasure_b", "max")])
def test_auto_goes_by_the_name_of_what_checkpoints_watch(monitor: str, mode: str) -> None:
    checkpoint, notes = make(ModelCheckpoint, monitor=monitor, mode="auto")
    assert checkpoint.mode == mode and f"`mode='{mode}'`" in notes


class Watched(Regression):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.log("acc", 1.0)
        return self.loss(batch)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", [1.0, 0.0, 2.0][self.current_epoch])


def fit_in_release(release: str | None, folder: Path, *given: Any) -> Any:
    kind = type("Watched", (Watched,), {"hook_era": release})
    trainer = quiet_trainer(folder, callbacks=[*given], max_epochs=3, enable_checkpointing=True, num_sanity_val_steps=0)
    trainer.fit(kind(), loader(), loader())
    return trainer.checkpoint_callback


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(("release", "mode"), [("0.9", "max"), ("1.2", "max"), ("1.3", "min"), (None, "min")])
def test_a_direction_that_is_left_out_is_that_of_the_release(tmp_path: Path, release: str | None, mode: str) -> None:
    stopping = EarlyStopping("acc", 0.1)
    checkpoint = fit_in_release(release, tmp_path, stopping, ModelCheckpoint(tmp_path, monitor="acc"))
    assert (checkpoint.mode, stopping.mode, stopping.min_delta) == (mode, mode, 0.1 if mode == "max" else -0.1)
    assert stopping.wait_count == 2 and len(checkpoint.best_k_models) == 1


def test_a_direction_in_which_releases_differed_has_to_be_given_where_the_release_is_unknown(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"releases up to 1\.2 took 'max' and later ones 'min'.* `hook_era`"):
        fit_in_release("1.x", tmp_path, ModelCheckpoint(tmp_path, monitor="val_acc"))
    assert make(EarlyStopping, "val_acc")[0].mode == make(EarlyStopping, "val_acc", mode="auto")[0].mode == "min"


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_what_watches_waits_for_the_validation_that_follows_the_epoch_s_end_from_1_1_to_1_3(tmp_path: Path) -> None:
    stopping = EarlyStopping("val_loss", patience=1)
    checkpoint = fit_in_release("1.1", tmp_path, stopping, ModelCheckpoint(tmp_path, monitor="val_loss"))
    assert "epoch=1" in checkpoint.best_model_path and stopping.stopped_epoch == 2


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    ("release", "best", "best_of_trainer"),
    [("0.7", 1, 1), ("0.9", 1, 2), ("1.2", 1, 1), ("1.3", 2, 2), (None, 2, 2)],
)
def test_what_is_kept_by_default_is_that_of_the_release(
    tmp_path: Path, release: str | None, best: int, best_of_trainer: int
) -> None:
    for passed, expected in (([ModelCheckpoint(tmp_path)], best), ([], best_of_trainer)):
        checkpoint = fit_in_release(release, tmp_path, *passed)
        assert f"epoch={expected}" in checkpoint.best_model_path
        assert "'monitor': None" in checkpoint.state_key  # which a fit that resumes looks for


@given(mode=st.sampled_from(["min", "max"]), monitor=st.text(min_size=1))
def test_a_direction_that_is_given_is_taken(mode: str, monitor: str) -> None:
    assert make(ModelCheckpoint, monitor=monitor, mode=mode)[0].mode == mode
    assert make(EarlyStopping, monitor, mode=mode)[0].mode == mode


@pytest.mark.filterwarnings(NO_VALIDATION)
def test_a_checkpoint_of_earlier_arguments_saves(tmp_path: Path) -> None:
    path = os.path.join(tmp_path, "{epoch}-{train_loss:.2f}")
    checkpoint, _ = make(ModelCheckpoint, filepath=path, monitor="train_loss", period=2, save_top_k=-1, verbose=0)
    trainer = Trainer(
        callbacks=[checkpoint], max_epochs=4, logger=False, enable_progress_bar=False, default_root_dir=tmp_path
    )
    trainer.fit(Regression(), loader())
    assert sorted(name[:7] for name in os.listdir(tmp_path)) == ["epoch=1", "epoch=3"]
    assert checkpoint.best == checkpoint.best_model_score is not None
    assert trainer.checkpoint_callback is checkpoint


# stopping


def test_stopping_watches_the_metric_of_0_x_by_default() -> None:
    stopping, notes = make(EarlyStopping, patience=2, verbose=1)
    assert (stopping.monitor, stopping.patience, stopping.verbose) == ("val_loss", 2, True)
    assert "as up to 0.9" in notes


def test_stopping_takes_its_arguments_in_the_earlier_order() -> None:
    stopping, notes = make(EarlyStopping, "loss", 0.1, 5, False, "min", True, log_rank_zero_only=True)
    assert (stopping.min_delta, stopping.patience, stopping.strict, notes) == (
        -0.1,
        5,
        True,
        "",
    )  # as there: signed by mode


# classes that stand for ours


@pytest.mark.parametrize(
    ("name", "of_ours"),
    [
        (ModelCheckpoint, ours.ModelCheckpoint()),
        (EarlyStopping, ours.EarlyStopping("loss")),
        (StochasticWeightAveraging, ours.StochasticWeightAveraging(0.1)),
        (ProgressBar, ours.TQDMProgressBar()),
        (TQDMProgressBar, ours.TQDMProgressBar()),
        (RichProgressBar, ours.RichProgressBar()),
    ],
)
def test_objects_of_ours_are_instances_of_the_earlier_name_but_not_of_its_subclasses(name: type, of_ours: Any) -> None:
    class Own(name):  # type: ignore[misc]
        pass

    assert isinstance(of_ours, name)
    assert not isinstance(of_ours, Own)
    assert not isinstance(Callback(), name)
    assert issubclass(Own, type(of_ours).__mro__[0]) or name is ProgressBar


def test_state_is_kept_under_the_same_key_as_that_of_ours() -> None:
    assert ModelCheckpoint(monitor="loss").state_key == ours.ModelCheckpoint(monitor="loss").state_key
    assert EarlyStopping("loss").state_key == ours.EarlyStopping("loss").state_key


@pytest.mark.parametrize(
    ("base", "method", "advice"),
    [
        (ModelCheckpoint, "_do_check_save", "`on_save_checkpoint`"),
        (EarlyStopping, "check_metrics", "`_evaluate_stopping_criteria`"),
    ],
)
def test_a_subclass_that_overrides_what_is_not_called_warns_when_it_is_used(
    base: type, method: str, advice: str, tmp_path: Path
) -> None:
    own, notes = make(type, "Own", (base,), {method: lambda self: None})
    assert not notes
    for text in (rf"Own\.{method}: .* is not called .*{advice}", ""):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            callback = own() if base is ModelCheckpoint else own("train_loss")
            quiet_trainer(tmp_path, callbacks=[callback], enable_checkpointing=None).fit(Regression(), loader())
        told = [str(one.message) for one in caught if "Own." in str(one.message)]
        assert len(told) == bool(text) and all(re.match(text, one) for one in told)


class KeepsAll(ModelCheckpoint):
    def _del_model(self, filepath: str) -> None:
        vars(self).setdefault("gone", []).append(os.path.basename(filepath))


class SavesTwice(ModelCheckpoint):
    def _save_model(self, filepath: str, trainer: Any, pl_module: Any) -> None:
        assert pl_module is trainer.lightning_module
        super()._save_model(filepath, trainer, pl_module)
        super()._save_model(trainer=trainer, filepath=f"{filepath}.again")


class FromTheSecond(ModelCheckpoint):
    def _save_top_k_checkpoints(self, trainer: Any, pl_module: Any, metrics: Any) -> None:
        if trainer.current_epoch > 0:
            super()._save_top_k_checkpoints(trainer, pl_module, {**metrics, "epoch": 7})


class AtTheEnd(ModelCheckpoint):
    def on_train_epoch_end(self, trainer: Any, pl_module: Any, outputs: Any = None) -> None:
        names = self._monitor_candidates(trainer, epoch=9, step=trainer.global_step)
        assert (int(names["epoch"]), int(names["step"])) == (9, trainer.global_step)
        self.save_checkpoint(trainer, pl_module)


@pytest.mark.parametrize(
    ("cls", "files"),
    [
        (KeepsAll, ["0", "1"]),
        (SavesTwice, ["0.ckpt.again", "1", "1.ckpt.again"]),
        (FromTheSecond, ["7"]),
        (AtTheEnd, ["1"]),
    ],
)
def test_methods_of_earlier_names_are_called(cls: Any, files: list[str], tmp_path: Path) -> None:
    checkpoint = cls(tmp_path / "kept", "{epoch}", auto_insert_metric_name=False)
    quiet_trainer(tmp_path, callbacks=[checkpoint], max_epochs=2, enable_checkpointing=None).fit(Regression(), loader())
    assert sorted(path.name.removesuffix(".ckpt") for path in (tmp_path / "kept").iterdir()) == files
    assert getattr(checkpoint, "gone", ["0.ckpt"]) == ["0.ckpt"]


@pytest.mark.parametrize(
    ("cls", "today"),
    [
        (ModelCheckpoint, ours.ModelCheckpoint),
        (EarlyStopping, ours.EarlyStopping),
        (StochasticWeightAveraging, ours.StochasticWeightAveraging),
    ],
)
def test_editors_and_command_lines_see_todays_arguments(cls: type, today: type) -> None:
    assert inspect.signature(cls).parameters.keys() == inspect.signature(today).parameters.keys()


# averaging


@pytest.mark.parametrize(
    ("args", "kwargs", "found", "told"),
    [
        ((), {"swa_lrs": 0.1, "swa_epoch_start": 2}, (0.1, 2, 10), ""),
        (([0.1, 0.2],), {}, ([0.1, 0.2], 0.8, 10), ""),
        ((1e-2, 0.75), {}, (1e-2, 0.75, 10), ""),
        ((1e-2, 3, 5, "linear"), {}, (1e-2, 3, 5), ""),
        ((1e-2,), {"annealing_epochs": 4}, (1e-2, 0.8, 4), ""),
        ((0.7,), {}, (0.7, 0.8, 10), "`swa_lrs`, as since 1.7"),
        ((3,), {}, (None, 3, 10), "`swa_epoch_start`, as up to 1.6"),
        ((0.8, None, 7), {}, (None, 0.8, 7), "`swa_epoch_start`, as up to 1.6"),
        ((0.8, [0.1]), {}, ([0.1], 0.8, 10), "`swa_epoch_start`, as up to 1.6"),
        ((0.8,), {"swa_lrs": 0.1}, (0.1, 0.8, 10), "`swa_epoch_start`, as up to 1.6"),
    ],
)
def test_averaging_takes_its_arguments_by_position(args: Any, kwargs: Any, found: Any, told: str) -> None:
    averaging, notes = make(StochasticWeightAveraging, *args, **kwargs)
    assert (averaging.swa_lrs, averaging.swa_epoch_start, averaging.annealing_epochs) == found
    assert told in notes and bool(told) == bool(notes)


def test_averaging_refuses_an_argument_that_is_given_twice() -> None:
    with pytest.raises(TypeError, match="swa_epoch_start"):
        StochasticWeightAveraging(0.1, 0.7, swa_epoch_start=0.8)


def test_averaging_without_a_rate_keeps_those_of_the_optimizer() -> None:
    assert StochasticWeightAveraging(swa_epoch_start=0.7).swa_lrs is None


# progress bars and profilers


@pytest.mark.parametrize("bar", [ProgressBar, TQDMProgressBar, RichProgressBar])
def test_a_bar_with_a_refresh_rate_of_zero_is_off(bar: type) -> None:
    assert not make(bar, refresh_rate=0)[0].is_enabled
    on, notes = make(bar)
    assert on.is_enabled and not notes
    some, notes = make(bar, refresh_rate=20)
    assert some.is_enabled and some.refresh_rate == 20 and not notes


def test_drawings_a_second_are_seconds_between_them() -> None:
    assert RichProgressBar(refresh_rate_per_second=4).refresh_rate_seconds == 0.25
    assert not RichProgressBar(refresh_rate_per_second=0).is_enabled


def test_a_bar_of_ones_own_draws_by_itself_unless_it_makes_or_reads_tqdm_bars(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Percent(ProgressBar):
        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)
            print(f"{100 * (batch_idx + 1) / self.total_train_batches:.0f} percent")

    class Described(ProgressBar):
        def init_train_tqdm(self) -> Any:
            bar = super().init_train_tqdm()
            bar.bar_format = "{desc}{n_fmt} of {total_fmt} {postfix}"
            return bar

    class Reading(ProgressBar):
        def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
            super().on_train_epoch_start(trainer, pl_module)
            self.main_progress_bar.set_description("mine")

    options: dict[str, Any] = {"max_epochs": 1, "logger": False, "enable_checkpointing": False}
    outputs = []
    for bar in (Percent(), Described(), Reading()):
        Trainer(callbacks=[bar], default_root_dir=tmp_path, enable_model_summary=False, **options).fit(
            Regression(), loader(2)
        )
        outputs.append(capsys.readouterr().out.partition("fit ended")[0])
    assert outputs[0] == "50 percent\n100 percent\n"
    assert "Epoch 0/0: 2 of 2 , train_loss=" in outputs[1]
    assert "mine: 100%" in outputs[2]


def test_a_bar_of_ones_own_may_have_other_arguments_properties_and_bars(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Marks:
        def __init__(self, total: int) -> None:
            self.total = total

        def update(self, metrics: dict[str, Any]) -> None:
            print(f"epoch of {self.total}: {sorted(metrics)}")

    class Epochs(ProgressBar):  # as since 2.0, where the base class draws nothing
        def __init__(self, refresh_rate: int = 1) -> None:
            super().__init__()
            self._refresh_rate = refresh_rate
            self._enabled = True

        @property
        def refresh_rate(self) -> int:
            return self._refresh_rate

        @property
        def is_enabled(self) -> bool:
            return self._enabled and self.refresh_rate > 0

        @property
        def is_disabled(self) -> bool:
            return not self.is_enabled

        def disable(self) -> None:
            self._enabled = False

        def enable(self) -> None:
            self._enabled = True

        def init_train_tqdm(self, trainer: Any) -> Any:
            return Marks(trainer.max_epochs)

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            super().on_train_start(trainer, pl_module)
            self.main_progress_bar = self.init_train_tqdm(trainer)

        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            super().on_train_epoch_end(trainer, pl_module)
            assert self.trainer is trainer
            self.main_progress_bar.update(self.get_metrics(trainer, pl_module))

    bar = Epochs()
    Trainer(
        callbacks=[bar],
        default_root_dir=tmp_path,
        enable_model_summary=False,
        max_epochs=2,
        logger=CSVLogger(tmp_path),
        enable_checkpointing=False,
    ).fit(Regression(), loader(2))
    printed = capsys.readouterr().out.partition("fit ended")[0]
    assert printed == 2 * "epoch of 2: ['train_loss', 'v_num']\n"
    bar.disable()
    assert bar.is_disabled


def test_profilers_take_the_arguments_of_earlier_releases(tmp_path: Path) -> None:
    for kind in (SimpleProfiler, AdvancedProfiler, PyTorchProfiler):
        profiler = kind(output_filename=tmp_path / "out.txt")
        assert isinstance(profiler, ours.ActionProfiler)
        assert (profiler.dirpath, profiler.filename) == (str(tmp_path), "out")
    with pytest.raises(ValueError, match="`record_functions` must be left out, since each hook is a range"):
        PyTorchProfiler(record_functions={"training_step"})
    assert isinstance(ours.SimpleProfiler(), SimpleProfiler)
    with ours.PassThroughProfiler().profile("anything") as name:
        assert name == "anything"


@pytest.mark.filterwarnings(NO_VALIDATION)
def test_the_trainer_takes_a_profiler_of_earlier_code(tmp_path: Path) -> None:
    simple = SimpleProfiler(dirpath=tmp_path, filename="times")
    trainer = Trainer(
        profiler=simple, max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False
    )
    trainer.fit(Regression(), loader())
    assert trainer.profiler is simple
    assert "[Strategy]SingleDeviceStrategy.training_step" in (tmp_path / "fit-times.txt").read_text()


@pytest.mark.parametrize("interval", [{"every_n_train_steps": 2}, {"train_time_interval": timedelta(minutes=1)}])
def test_the_end_of_epochs_means_nothing_beside_steps(interval: dict[str, Any]) -> None:
    with pytest.warns(
        UserWarning, match=f"save_on_train_epoch_end=True beside `{next(iter(interval))}`.*no epoch is due"
    ):
        callback = ModelCheckpoint(save_on_train_epoch_end=True, **interval)
    assert callback.save_on_train_epoch_end is None
    assert ModelCheckpoint(save_on_train_epoch_end=True, every_n_epochs=2).save_on_train_epoch_end


def test_a_metric_in_a_files_name_that_was_not_logged_is_written_as_0_with_a_warning(tmp_path: Path) -> None:
    checkpoint = ModelCheckpoint(dirpath=tmp_path, filename="{epoch}-{gone:.2f}-{other}")
    with pytest.warns(UserWarning, match="got 'gone' .* The file's name gets 0 in its place"):
        name = checkpoint.format_checkpoint_name({"epoch": 3})
    assert Path(name).name == "epoch=3-gone=0.00-other=0.ckpt"


# the module by Lightning's name for it


def test_methods_of_stock_callbacks_take_the_module_as_pl_module(tmp_path: Path) -> None:
    with names_of_earlier_code():
        names = import_module("lightning.pytorch.callbacks")
        classes = [getattr(names, name) for name in dir(names) if not name.startswith("_")]
    callbacks = [cls for cls in classes if isinstance(cls, type) and issubclass(cls, Callback)]
    assert len(callbacks) > 15
    for cls in callbacks:
        for name in CATALOGUE:
            method = getattr(cls, name, None)
            parameters = list(inspect.signature(method).parameters)[1:3] if callable(method) else []
            assert parameters != ["trainer", "module"], f"{cls.__name__}.{name}"


@pytest.mark.parametrize("base", ["Callback", "Timer", "ModelCheckpoint", "TQDMProgressBar", "DeviceStatsMonitor"])
def test_an_override_hands_everything_on_by_name(base: str, tmp_path: Path) -> None:
    with names_of_earlier_code():
        parent = getattr(import_module("lightning.pytorch.callbacks"), base)
    called = []

    def override(name: str) -> Any:
        def method(self: Any, trainer: Any, pl_module: Any, *rest: Any) -> Any:
            called.append(name)
            parameters = list(inspect.signature(getattr(parent, name)).parameters)[3:]
            named = dict(zip(parameters, rest, strict=True))
            return getattr(super(cls, self), name)(trainer=trainer, pl_module=pl_module, **named)

        return method

    hooks = ("setup", "on_fit_start", "on_train_start", "on_train_batch_start", "on_train_epoch_end", "teardown")
    cls = type("Handing", (parent,), {name: override(name) for name in hooks})
    callback = cls(dirpath=tmp_path) if base == "ModelCheckpoint" else cls()
    trainer = Trainer(max_epochs=1, callbacks=[callback], logger=CSVLogger(tmp_path), accelerator="cpu")
    trainer.fit(Regression(), loader(), loader())
    assert {*called} == {*hooks}
    assert base != "ModelCheckpoint" or Path(callback.best_model_path).is_file()


class Panel(RichProgressBar):
    """Draws into a group of its own, as subclasses of Lightning's do."""

    def _init_progress(self, trainer: Any) -> None:
        from rich.console import Console
        from rich.progress import TextColumn

        from camshaft.compat.names.trainer.rich_columns import CustomProgress, MetricsTextColumn

        if self.is_enabled and (self.progress is None or self._progress_stopped):
            self._reset_progress_bar_ids()
            self._console = Console(record=True, file=io.StringIO(), width=100, **self._console_kwargs)
            self._metric_component = MetricsTextColumn(trainer, metrics_format=".1f")
            columns = [TextColumn("{task.description} {task.completed:.0f}/{task.total}"), self._metric_component]
            self.progress = CustomProgress(*columns, auto_refresh=False, console=self._console)
            self.progress.start()
            self._progress_stopped = False

    def _update_metrics(self, trainer: Any, pl_module: Any) -> None:
        self._metric_component.update({"seen": float(trainer.global_step)})

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        super().on_train_epoch_end(trainer, pl_module)
        assert self.train_progress_bar.completed == 4
        self.progress.console.print(f"end of epoch {trainer.current_epoch}")


def test_a_bar_that_makes_its_own_rich_progress_draws_with_it(tmp_path: Path) -> None:
    pytest.importorskip("rich")
    bar = Panel()
    with warnings.catch_warnings():
        warnings.simplefilter("error", HookFaultWarning)
        quiet_trainer(tmp_path, callbacks=[bar], max_epochs=2, enable_progress_bar=True).fit(
            Regression(), loader(4), loader(2)
        )
    shown = bar._console.export_text()
    assert [f"end of epoch {epoch}" in shown for epoch in range(2)] == [True, True]
    assert "Epoch 1/1 4/4 seen: 8.0" in shown and bar._progress_stopped


def test_columns_of_lightnings_names_are_columns_of_rich(tmp_path: Path) -> None:
    pytest.importorskip("rich")
    columns = import_module("camshaft.compat.names.trainer.rich_columns")
    progress = columns.CustomProgress(
        columns.CustomBarColumn(style="red"),
        columns.BatchesProcessedColumn(style="dim"),
        columns.CustomTimeColumn(style="dim"),
        columns.ProcessingSpeedColumn(style="dim"),
    )
    progress.add_task("x", total=4, completed=3)
    assert "3/4" in str([cell for column in progress.make_tasks_table(progress.tasks).columns for cell in column.cells])
    progress.soft_refresh()
