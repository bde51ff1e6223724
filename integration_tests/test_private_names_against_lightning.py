"""Private names of Lightning's trainer that public code reads and writes: under the import names they act as there."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, RandomSampler

lightning = pytest.importorskip("lightning.pytorch", reason="compares with Lightning")
compat = pytest.importorskip("camshaft.compat")

from lightning.pytorch.demos.boring_classes import BoringModel as TheirModel  # noqa: E402

import camshaft.compat.names.finder as names  # noqa: E402
from camshaft.compat.names.modules.boring_classes import BoringModel as OurModel  # noqa: E402

QUIET = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
FRAMEWORKS = (lightning, compat)
BASES = {lightning: TheirModel, compat: OurModel}

pytestmark = pytest.mark.filterwarnings("ignore")


def trainer_of(framework: Any, **settings: Any) -> Any:
    limits = {"max_epochs": 2, "limit_train_batches": 5, "limit_val_batches": 2}
    return framework.Trainer(accelerator="cpu", **{**QUIET, **limits, **settings})


def name_of(framework: Any, place: str, name: str) -> Any:
    """A name of a module below `lightning.pytorch`, or its counterpart."""
    if framework is lightning:
        return getattr(__import__(f"lightning.pytorch.{place}", fromlist=[name]), name)
    return names.load(names.counterpart_of(place, name) or "")


READ = {
    "connectors": lambda trainer, module: (
        trainer._accelerator_connector.is_distributed,
        trainer._accelerator_connector._accelerator_flag,
        trainer._accelerator_connector._precision_flag,
        trainer._accelerator_connector._precision_plugin_flag,
        trainer._accelerator_connector.cluster_environment.global_rank(),
        trainer._accelerator_connector._check_and_init_precision() is not None,
        trainer._callback_connector._attach_model_callbacks(),
        trainer._checkpoint_connector._ckpt_path,
        trainer._signal_connector.received_sigterm,
        trainer._data_connector._datahook_selector.datamodule,
        trainer._data_connector._datahook_selector.get_instance("on_after_batch_transfer") is module,
    ),
    "the device of the module": lambda trainer, module: (module._device, module._dtype, module._current_fx_name),
    "loaders": lambda trainer, module: [
        [len(loop._combined_loader.flattened), loop._combined_loader.iterables is not None, loop._data_source.name]
        for loop in (trainer.fit_loop, trainer.fit_loop.epoch_loop.val_loop)
        if loop._combined_loader is not None
    ],
    "the source of loaders": lambda trainer, module: len(trainer.fit_loop._data_source.dataloader()),
    "the loop that runs": lambda trainer, module: (
        trainer._active_loop is trainer.fit_loop,
        trainer._evaluation_loop is trainer.fit_loop.epoch_loop.val_loop,
        trainer.fit_loop.trainer is trainer,
        trainer.fit_loop.restarting,
    ),
    "rows of loggers": lambda trainer, module: (
        trainer._logger_connector.should_update_logs,
        trainer.fit_loop.epoch_loop._batches_that_stepped,
    ),
    "counters": lambda trainer, module: (
        trainer.fit_loop.epoch_loop.batch_progress.total.ready,
        trainer.fit_loop.epoch_loop.batch_progress.is_last_batch,
    ),
}
HOOKS = (
    "on_train_start",
    "on_train_batch_start",
    "on_train_batch_end",
    "on_validation_batch_end",
    "on_train_epoch_end",
)


@pytest.mark.parametrize("read", READ.values(), ids=READ)
def test_what_is_read_in_hooks_is_what_lightning_has_there(read: Any) -> None:

    def observed(framework: Any) -> Any:
        seen: list[Any] = []

        def note(module: Any, *_: Any, hook: str) -> None:
            if not module.trainer.sanity_checking:
                seen.append((hook, read(module.trainer, module)))

        space = {hook: partial_method(note, hook) for hook in HOOKS}
        module = type("Module", (BASES[framework],), space)()
        trainer_of(framework, log_every_n_steps=2, accumulate_grad_batches=2, val_check_interval=2).fit(module)
        return seen

    own = observed(compat)
    assert own == observed(lightning)


def partial_method(function: Any, hook: str) -> Any:
    return lambda self, *arguments: partial(function, hook=hook)(self, *arguments)


def test_counters_that_are_written_act_as_there() -> None:

    def observed(framework: Any) -> Any:

        class Module(BASES[framework]):  # type: ignore[misc]
            automatic_optimization = False

            def training_step(self, batch: Any, batch_idx: int) -> None:
                self.manual_backward(super().training_step(batch, batch_idx)["loss"])
                self.optimizers().step()

            def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
                loop = self.trainer.fit_loop.epoch_loop
                if batch_idx == 1:
                    loop.manual_optimization.optim_step_progress.total.completed += 3
                    loop.batch_progress.total.ready += 10
                seen.append((self.trainer.global_step, loop.total_batch_idx, loop.batch_progress.current.ready))

        seen: list[Any] = []
        trainer_of(framework).fit(Module())
        return seen

    own = observed(compat)
    assert own == observed(lightning)


def test_steps_of_loggers_go_on_from_the_number_that_is_set(tmp_path: Path) -> None:

    def observed(framework: Any) -> Any:

        class Module(BASES[framework]):  # type: ignore[misc]
            def on_train_start(self) -> None:
                self.trainer.fit_loop.epoch_loop._batches_that_stepped = 100

            def training_step(self, batch: Any, batch_idx: int) -> Any:
                self.log("value", float(batch_idx))
                return super().training_step(batch, batch_idx)

        logger = name_of(framework, "loggers", "CSVLogger")(tmp_path / framework.__name__)
        trainer = trainer_of(framework, logger=logger, log_every_n_steps=1)
        trainer.fit(Module())
        rows = Path(logger.log_dir, "metrics.csv").read_text().splitlines()
        position = rows[0].split(",").index("step")
        return trainer.global_step, [row.split(",")[position] for row in rows[1:]]

    own = observed(compat)
    assert own == observed(lightning)
    assert own[1][0] == "100"


class Shifted(Sequence[Any]):
    def __init__(self, first: int) -> None:
        self.first = first

    def __len__(self) -> int:
        return 10

    def __getitem__(self, idx: int) -> Any:
        return torch.full((32,), float(self.first + idx))


def test_loaders_that_are_put_in_place_of_others_train_from_the_next_epoch_on() -> None:

    def observed(framework: Any) -> Any:

        class Module(BASES[framework]):  # type: ignore[misc]
            def train_dataloader(self) -> Any:
                return DataLoader(Shifted(0))

            def on_train_start(self) -> None:
                combined = self.trainer.fit_loop._combined_loader
                combined.flattened = [DataLoader(Shifted(100)) for _ in combined.flattened]

            def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
                seen.append((self.current_epoch, batch_idx, int(batch[0, 0]), len(self.trainer.train_dataloader)))

        seen: list[Any] = []
        trainer_of(framework, limit_train_batches=3, max_epochs=3).fit(Module())
        return seen

    own = observed(compat)
    assert own == observed(lightning)


def test_loaders_are_asked_for_again_by_setup_data() -> None:

    def observed(framework: Any) -> Any:

        class Module(BASES[framework]):  # type: ignore[misc]
            num_asked = 0

            def train_dataloader(self) -> Any:
                self.num_asked += 1
                return DataLoader(Shifted(100 * self.num_asked))

            def configure_optimizers(self) -> Any:
                self.trainer.fit_loop.setup_data()
                seen.append(len(self.trainer.train_dataloader))
                return super().configure_optimizers()

            def on_train_epoch_end(self) -> None:
                self.trainer.fit_loop._combined_loader = None
                self.trainer.fit_loop.setup_data()

            def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
                seen.append((self.current_epoch, batch_idx, int(batch[0, 0])))

        seen: list[Any] = []
        trainer_of(framework, limit_train_batches=3, max_epochs=3).fit(Module())
        return seen

    own = observed(compat)
    assert own == observed(lightning)


# entries of checkpoints


def saved(framework: Any, tmp_path: Path, **changes: Any) -> list[Any]:
    """The entry of the fit's loop in checkpoints of every two batches and of epochs' ends."""

    class Module(BASES[framework]):  # type: ignore[misc]
        def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            entries.append(deepcopy(checkpoint["loops"]["fit_loop"]))

    entries: list[Any] = []
    callback = name_of(framework, "callbacks", "ModelCheckpoint")
    folder = tmp_path / framework.__name__
    savers = [
        callback(folder, "{step}", every_n_train_steps=2, save_top_k=-1),
        callback(folder, "{epoch}", every_n_epochs=1, save_top_k=-1),
    ]
    trainer_of(framework, callbacks=savers, enable_checkpointing=True, **changes).fit(Module())
    return entries


@pytest.mark.parametrize("changes", [{}, {"accumulate_grad_batches": 2}, {"limit_val_batches": 0}])
def test_checkpoints_have_lightnings_counters(tmp_path: Path, changes: dict[str, Any]) -> None:
    """Beside `completed` and steps of loggers, which Lightning counts after it has saved, and schedulers."""
    theirs, own = (
        {_key(entry): _counted(entry) for entry in saved(framework, tmp_path, **changes)} for framework in FRAMEWORKS
    )
    assert own == {key: theirs[key] for key in own}  # it saves an epoch's last batch with its end
    assert len(own) > 3


def _key(entry: Any) -> Any:
    epochs, batches = entry["epoch_progress"]["total"], entry["epoch_loop.batch_progress"]["total"]
    return epochs["ready"], epochs["processed"], batches["ready"]


def _counted(entry: Any) -> Any:
    steps = entry["epoch_loop.automatic_optimization.optim_progress"]["optimizer"]["step"]
    return {
        "keys": {key for key in entry if "batch_loop" not in key},  # those of 1.5 to 1.9 are there, too
        "steps": steps,
        "by hand": entry["epoch_loop.manual_optimization.optim_step_progress"],
        "last": entry["epoch_loop.batch_progress"]["is_last_batch"],
        **{
            (of, extent): {name: count for name, count in entry[of][extent].items() if name != "completed"}
            for of in ("epoch_progress", "epoch_loop.batch_progress")
            for extent in ("total", "current")
        },
    }


def _of_epoch(fit: Any, num: int) -> None:
    for extent in ("total", "current"):
        fit["epoch_progress"][extent] = dict.fromkeys(("ready", "started", "processed", "completed"), num)


def _of_steps(fit: Any, num: int) -> None:
    fit["epoch_loop.automatic_optimization.optim_progress"]["optimizer"]["step"]["total"]["completed"] = num


@pytest.mark.parametrize("change", [_of_epoch, _of_steps])
def test_counters_of_a_checkpoint_that_a_hook_changes_are_followed(tmp_path: Path, change: Any) -> None:

    def observed(framework: Any) -> Any:

        class Module(BASES[framework]):  # type: ignore[misc]
            def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
                change(checkpoint["loops"]["fit_loop"], 7)

            def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
                seen.append((self.current_epoch, batch_idx, self.global_step))

        seen: list[Any] = []
        path = tmp_path / f"{framework.__name__}.ckpt"
        first = trainer_of(framework, max_epochs=1)
        first.fit(BASES[framework]())
        first.save_checkpoint(path)
        trainer_of(framework, max_epochs=9).fit(Module(), ckpt_path=path)
        return seen

    own = observed(compat)
    assert own == observed(lightning)
    assert own


def test_an_evaluation_loop_of_ones_own_prints_in_its_own_way(capsys: pytest.CaptureFixture[str]) -> None:

    def observed(framework: Any) -> Any:

        class Loop(name_of(framework, "loops.evaluation_loop", "_EvaluationLoop")):  # type: ignore[misc]
            @staticmethod
            def _print_results(results: Any, stage: str) -> None:
                print("own", stage, [{name: round(value.item(), 3) for name, value in one.items()} for one in results])

        class Trainer(framework.Trainer):  # type: ignore[misc, name-defined]
            def __init__(self, **settings: Any) -> None:
                self.devices, self.log_every_n_steps = 3, 2
                super().__init__(**settings)
                functions = name_of(framework, "trainer.states", "TrainerFn")
                stages = name_of(framework, "trainer.states", "RunningStage")
                self.test_loop = Loop(self, functions.TESTING, stages.TESTING, inference_mode=False)

        class Module(BASES[framework]):  # type: ignore[misc]
            def test_step(self, batch: Any, batch_idx: int) -> None:
                assert not torch.is_inference_mode_enabled()
                self.log("x", float(batch_idx))

        trainer = Trainer(accelerator="cpu", limit_test_batches=3, **QUIET)
        capsys.readouterr()
        results = trainer.test(Module())
        printed = [line for line in capsys.readouterr().out.splitlines() if line.startswith("own")]
        return results, printed, trainer.devices, isinstance(trainer.validate_loop, Loop.__mro__[1])

    own = observed(compat)
    assert own == observed(lightning)
    assert own[1] == ["own test [{'x': 1.0}]"]


@pytest.mark.parametrize("num_steps", [3, 7])
def test_a_loop_knows_whether_it_goes_on_inside_an_epoch(tmp_path: Path, num_steps: int) -> None:
    def observed(framework: Any) -> Any:
        class Module(BASES[framework]):  # type: ignore[misc]
            def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
                seen.append((self.current_epoch, batch_idx, self.trainer.fit_loop.restarting))

            def on_train_batch_end(self, *_: Any) -> None:
                if path is None and self.global_step == num_steps:
                    self.trainer.save_checkpoint(saved)

        seen: list[Any] = []
        path, saved = None, tmp_path / f"{framework.__name__}.ckpt"
        trainer_of(framework).fit(Module())
        path, seen = saved, []
        trainer_of(framework, max_epochs=3).fit(Module(), ckpt_path=path)
        return {epoch: restarting for epoch, _, restarting in seen}

    assert observed(compat) == observed(lightning)


@pytest.mark.parametrize("inside", [True, False])
def test_a_run_whose_loader_was_replaced_goes_on_as_if_it_had_not_been_stopped(tmp_path: Path, inside: bool) -> None:
    class Module(OurModel):
        def train_dataloader(self) -> Any:
            return DataLoader(Shifted(0), 2, shuffle=True)

        def on_train_start(self) -> None:
            if replaces:
                combined = self.trainer.fit_loop._combined_loader
                data = Shifted(100)
                combined.flattened = [DataLoader(data, 2, sampler=RandomSampler(data)) for _ in combined.flattened]

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            seen.append((self.current_epoch, batch_idx, batch[:, 0].tolist()))
            if (self.current_epoch, batch_idx) == (1, 2 if inside else 4):
                self.trainer.save_checkpoint(path)
            return super().training_step(batch, batch_idx)

    path, replaces = tmp_path / "one.ckpt", True
    seen: list[Any] = []
    torch.manual_seed(0)
    trainer_of(compat, max_epochs=3).fit(Module())
    whole, seen = seen, []
    trainer_of(compat, max_epochs=3).fit(Module(), ckpt_path=path)
    assert seen == whole[-len(seen) :]
    assert len(seen) == (7 if inside else 5)
    if inside:
        replaces = False
        with pytest.raises(ValueError, match="`train loader` must be replaced until `on_train_start`"):
            trainer_of(compat, max_epochs=3).fit(Module(), ckpt_path=path)


@pytest.mark.parametrize("kind", [list, tuple, "own", "omegaconf"])
def test_loggers_and_callbacks_may_be_any_sequence(tmp_path: Path, kind: Any) -> None:
    class Own(Sequence[Any]):
        def __init__(self, items: list[Any]) -> None:
            self.items = items

        def __len__(self) -> int:
            return len(self.items)

        def __getitem__(self, idx: Any) -> Any:
            return self.items[idx]

    if kind == "omegaconf":
        omegaconf = pytest.importorskip("omegaconf", reason="its lists")
        kind = partial(omegaconf.ListConfig, flags={"allow_objects": True})
    kind = Own if kind == "own" else kind
    logger = name_of(compat, "loggers", "CSVLogger")(tmp_path)
    callback = type("Mine", (name_of(compat, "callbacks", "Callback"),), {})()  # omegaconf copies those of attrs
    trainer = compat.Trainer(accelerator="cpu", **{**QUIET, "logger": kind([logger]), "callbacks": kind([callback])})
    assert trainer.loggers == [logger]
    assert callback in trainer.callbacks
