"""What old modules and callbacks read and call: attributes of the trainer, of the module, and `super()` of hooks."""

from __future__ import annotations

import pickle
from argparse import Namespace
from copy import deepcopy
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from compat_parts import Regression, quiet_trainer
from torch import Tensor, nn
from trainer_parts import NO_VALIDATION, ListLogger, RegressionData, assert_same, loader, weights

from camshaft.callbacks import EarlyStopping, LambdaCallback, ModelSummary
from camshaft.compat import DataModule, Trainer, TrainingModule
from camshaft.compat.data_module import EarlierDataHooks
from camshaft.compat.module import EarlierHooks
from camshaft.compat.names.table import advice
from camshaft.hooks_core import CATALOGUE, Callback, DataHooks, HookFaultWarning, ModelHooks, Receiver, is_overridden
from camshaft.hooks_core.dispatch.candidates import candidates
from camshaft.hooks_core.eras.hooks import hooks_of_eras

pytestmark = pytest.mark.filterwarnings(NO_VALIDATION)


class TestTrainer:
    def test_names_of_then_read_what_todays_do(self, tmp_path: Path) -> None:
        class Reading(Callback):
            def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
                seen.append(
                    (trainer.batch_idx, trainer.batch_nb, trainer.total_batch_idx, trainer.get_model() is module)
                )

            def on_validation_start(self, trainer: Any, module: Any) -> None:
                evaluating.append((trainer.evaluating, trainer.running_sanity_check))

        seen: list[Any] = []
        evaluating: list[Any] = []
        trainer = quiet_trainer(tmp_path, max_epochs=2, callbacks=[Reading(), EarlyStopping("val_loss")])
        trainer.fit(Regression(), loader(2), loader(3))
        assert seen == [(0, 0, 0, True), (1, 1, 1, True), (0, 0, 2, True), (1, 1, 3, True)]
        assert evaluating == [(True, True), (True, False), (True, False)]
        assert (trainer.nb_training_batches, trainer.nb_val_batches) == (2, 3)
        assert (trainer.max_nb_epochs, trainer.min_nb_epochs) == (2, 0)
        assert (trainer.proc_rank, trainer.node_rank, trainer.num_processes, trainer.devices) == (0, 0, 1, 1)
        assert not any(
            (trainer.use_ddp, trainer.use_dp, trainer.use_ddp2, trainer.on_gpu, trainer.on_tpu, trainer.use_amp)
        )
        assert (trainer.num_gpus, trainer.root_gpu, trainer.distributed_backend) == (0, None, None)
        assert trainer.progress_bar_dict == dict(trainer.progress_bar_metrics) != {}
        assert isinstance(trainer.early_stop_callback, EarlyStopping)
        assert (trainer.disable_validation, trainer.enable_validation, trainer.evaluating) == (False, True, False)
        assert trainer.is_overridden("validation_step") and not trainer.is_overridden("on_fit_end")
        assert (trainer.default_save_path, trainer.weights_save_path) == (str(tmp_path), str(tmp_path))
        assert trainer.row_log_interval == 50
        assert trainer.training_type_plugin is trainer.strategy

    def test_counts_and_intervals_of_then_are_there(self, tmp_path: Path) -> None:
        trainer = quiet_trainer(
            tmp_path, max_epochs=1, num_sanity_val_steps=1, log_every_n_steps=3, val_check_interval=2
        )
        trainer.fit(Regression(), loader(4), loader(3))
        assert (trainer.nb_sanity_val_steps, trainer.nb_tng_batches) == (1, 4)
        assert (trainer.add_log_row_interval, trainer.add_row_log_interval) == (3, 3)
        assert trainer.total_batches == 4 + 2 * 3

    def test_an_epoch_without_validation_has_batches_of_training_alone(self, tmp_path: Path) -> None:
        trainer = quiet_trainer(tmp_path, max_epochs=1, check_val_every_n_epoch=5)
        assert trainer.total_batches == 0
        trainer.fit(Regression(), loader(4), loader(3))
        assert trainer.total_batches == 4

    @pytest.mark.parametrize("is_old", [True, False])
    def test_a_loader_of_evaluation_is_in_a_list_before_2_0(self, tmp_path: Path, is_old: bool) -> None:
        class Reading(Regression):
            hook_era = "1.9" if is_old else "2.x"

            def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
                read.append(self.trainer.val_dataloaders)

        read: list[Any] = []
        data = loader(1)
        trainer = quiet_trainer(tmp_path)
        trainer.validate(Reading(), data)
        trainer.validate(Reading(), [data, data])
        assert trainer.test_dataloaders is None
        one, two = ([data] if is_old else data), [data, data]
        assert read == [one, two, two]

    def test_the_experiment_is_what_the_logger_writes_to(self, tmp_path: Path) -> None:
        class Writing(ListLogger):
            experiment = "the experiment"

        assert Regression().experiment is None
        model = Regression()
        trainer = quiet_trainer(tmp_path, max_epochs=1, logger=Writing())
        trainer.fit(model, loader(1))
        assert (trainer.experiment, model.experiment) == ("the experiment", "the experiment")
        model.experiment = "its own"
        assert model.experiment == "its own"
        assert quiet_trainer(tmp_path, logger=False).experiment is None

    @pytest.mark.parametrize(
        ("release", "after"), [("0.4.9", 1), ("0.5", 1), ("0.9", 1), ("1.5", 1), ("1.6", 2), ("2.6", 2), (None, 2)]
    )
    def test_current_epoch_after_a_fit_is_that_of_the_release(
        self, tmp_path: Path, release: str | None, after: int
    ) -> None:
        class Counting(Regression):
            hook_era = release

            def on_train_epoch_start(self) -> None:
                seen.append(self.current_epoch)

            def on_train_end(self) -> None:
                seen.append(self.current_epoch)

        seen: list[int] = []
        model, trainer = Counting(), quiet_trainer(tmp_path, max_epochs=2)
        assert trainer.current_epoch == 0
        trainer.fit(model, loader(1))
        assert seen == [0, 1, after]
        assert trainer.current_epoch == model.current_epoch == after
        trainer.fit_loop.limits = attrs.evolve(trainer.fit_loop.limits, max_epochs=3)
        trainer.validate(model, loader(1), verbose=False)
        assert trainer.current_epoch == after
        trainer.fit(model, loader(1))
        assert seen[3:] == [2, after + 1]

    @pytest.mark.parametrize(
        ("release", "given", "limit"),
        [("1.4", {}, None), ("1.5", {}, -1), (None, {}, -1), (None, {"max_steps": None}, None)],
    )
    @pytest.mark.filterwarnings("ignore:Arguments of the trainer")
    def test_no_limit_of_updates_is_none_up_to_1_4(self, tmp_path: Path, release: Any, given: Any, limit: Any) -> None:
        trainer, module = quiet_trainer(tmp_path, **given), Regression()
        module.hook_era = release
        trainer.fit(module, loader(2))
        assert trainer.max_steps == limit
        trainer.max_steps = 3
        assert trainer.max_steps == trainer.fit_loop.max_steps == 3

    def test_current_epoch_of_a_fit_that_stopped_within_an_epoch_is_that_epochs(self, tmp_path: Path) -> None:
        class Old(Regression):
            hook_era = "0.9"

        trainer = quiet_trainer(tmp_path, max_epochs=5, max_steps=3)
        trainer.fit(Old(), loader(2))
        assert trainer.current_epoch == 1

    @pytest.mark.parametrize("release", ["0.5", "0.8", "0.9", "1.0", "1.1", "1.2", "1.5", "1.9"])
    def test_callbacks_beside_a_module_of_an_old_era_get_each_hook_as_often_as_today(
        self, tmp_path: Path, release: str
    ) -> None:
        class Today(Regression):
            pass

        class Old(Regression):
            hook_era = release

            def on_epoch_start(self) -> None: ...

            def on_epoch_end(self) -> None: ...

            def on_batch_end(self) -> None: ...

            def training_epoch_end(self, outputs: Any) -> None: ...

            def validation_epoch_end(self, outputs: Any) -> None: ...

            def on_train_batch_end(self, batch: Any, batch_idx: int, dataloader_idx: int) -> None:
                assert (len(batch), dataloader_idx) == (2, 0)

        def counted(model: Regression) -> dict[str, int]:
            counts: dict[str, int] = {}
            names = [one.name for one in CATALOGUE.received_by(Receiver.CALLBACK) if one.kind == "event"]

            def counting(name: str) -> Any:
                return lambda *arguments: counts.update({name: counts.get(name, 0) + 1})

            callback = LambdaCallback(**{name: counting(name) for name in names})
            quiet_trainer(tmp_path, max_epochs=2, callbacks=[callback]).fit(model, loader(2), loader(1))
            return counts

        assert counted(Old()) == counted(Today())

    def test_mixed_precision_is_amp(self, tmp_path: Path) -> None:
        assert quiet_trainer(tmp_path, precision="bf16-mixed").use_amp

    def test_schedulers_are_dictionaries(self, tmp_path: Path) -> None:
        class Scheduled(Regression):
            def configure_optimizers(self) -> Any:
                optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
                return [optimizer], [{"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1), "interval": "step"}]

        trainer = quiet_trainer(tmp_path)
        trainer.fit(Scheduled(), loader(2))
        (settings,) = trainer.lr_schedulers
        assert settings["scheduler"] is trainer.lr_scheduler_configs[0].scheduler
        assert (settings["interval"], settings["frequency"], settings["reduce_on_plateau"]) == ("step", 1, False)

    @pytest.mark.parametrize(("depth", "mode"), [(1, "top"), (-1, "full"), (0, None)])
    def test_the_summary_has_its_mode(self, depth: int, mode: str | None, tmp_path: Path) -> None:
        assert quiet_trainer(tmp_path, callbacks=ModelSummary(max_depth=depth)).weights_summary == mode
        assert quiet_trainer(tmp_path).weights_summary is None

    def test_a_fit_that_the_user_ended_was_interrupted(self, tmp_path: Path) -> None:
        class Interrupted(Regression):
            def training_step(self, batch: Any, batch_idx: int) -> Tensor:
                if is_first:
                    raise KeyboardInterrupt
                return super().training_step(batch, batch_idx)

        trainer = quiet_trainer(tmp_path)
        is_first = True
        with pytest.raises(KeyboardInterrupt):
            trainer.fit(Interrupted(), loader(1))
        assert trainer.interrupted
        is_first = False
        trainer.fit(Interrupted(), loader(1))
        assert not trainer.interrupted

    @pytest.mark.parametrize(
        "name", sorted(name.removeprefix("Trainer.") for name in advice() if name.startswith("Trainer."))
    )
    def test_an_attribute_without_equal_says_what_to_use(self, name: str, tmp_path: Path) -> None:
        trainer = quiet_trainer(tmp_path)
        with pytest.raises(AttributeError, match=f"no attribute '{name}' any more. Use "):
            getattr(trainer, name)
        assert not hasattr(trainer, name)

    def test_other_attributes_are_missed_as_ever(self, tmp_path: Path) -> None:
        with pytest.raises(AttributeError, match=r"^'Trainer' object has no attribute 'fitloop'$"):
            _ = quiet_trainer(tmp_path).fitloop  # type: ignore[attr-defined]

    def test_what_a_property_itself_misses_is_told(self) -> None:
        with pytest.raises(AttributeError, match="'fit_loop'"):
            _ = Trainer.__new__(Trainer).current_epoch

    def test_a_module_may_choose_what_the_progress_bar_shows(self, tmp_path: Path) -> None:
        class Choosing(Regression):
            hook_era = "1.4"

            def get_progress_bar_dict(self) -> dict[str, Any]:
                shown = super().get_progress_bar_dict()
                shown.pop("train_loss")
                return {**shown, "mine": 3}

        trainer = quiet_trainer(tmp_path)
        trainer.fit(Choosing(), loader(1), loader(1))
        assert trainer.progress_bar_metrics.keys() == {"val_loss", "mine"}
        assert Choosing().get_tqdm_dict.__self__ is not None
        assert Regression().get_progress_bar_dict() == {}

    def test_a_module_of_today_has_no_choice(self, tmp_path: Path) -> None:
        class Choosing(Regression):
            def get_progress_bar_dict(self) -> dict[str, Any]:
                return {}

        trainer = quiet_trainer(tmp_path)
        with pytest.warns(HookFaultWarning, match="get_progress_bar_dict: .* it is dead"):
            trainer.fit(Choosing(), loader(1), loader(1))
        assert trainer.progress_bar_metrics.keys() == {"train_loss", "val_loss"}


class TestModule:
    def test_it_reads_devices_and_data_from_its_trainer(self, tmp_path: Path) -> None:
        data, module = RegressionData(), Regression()
        assert (module.use_amp, module.on_gpu, module.use_ddp, module.datamodule) == (False, False, False, None)
        quiet_trainer(tmp_path, precision="bf16-mixed").fit(module, datamodule=data)
        assert (module.use_amp, module.on_gpu, module.use_ddp, module.use_tpu) == (True, False, False, False)
        assert module.datamodule is data

    def test_its_own_attributes_of_these_names_win(self, tmp_path: Path) -> None:
        class Owning(Regression):
            def __init__(self) -> None:
                super().__init__()
                self.datamodule = RegressionData()
                self.use_amp = nn.Linear(1, 1)
                self.on_gpu = True

            def train_dataloader(self) -> Any:
                return self.datamodule.train_dataloader()

        module = Owning()
        quiet_trainer(tmp_path).fit(module)
        assert isinstance(module.datamodule, RegressionData)
        assert isinstance(module.use_amp, nn.Linear)
        assert module.on_gpu is True
        assert "use_amp.weight" in module.state_dict()

    def test_optimizers_and_their_toggling_take_the_arguments_of_then(self, tmp_path: Path) -> None:
        class Toggling(Regression):
            automatic_optimization = False

            def training_step(self, batch: Any, batch_idx: int) -> None:  # type: ignore[override]
                optimizer: Any = self.optimizers(use_pl_optimizer=False)
                self.toggle_optimizer(optimizer, 0)
                self.untoggle_optimizer(0)
                self.toggle_optimizer(optimizer, optimizer_idx=0)
                self.untoggle_optimizer(optimizer_idx=0)
                with pytest.raises(IndexError):
                    self.toggle_optimizer(optimizer, 1)
                loss = self.loss(batch)
                self.manual_backward(loss, optimizer, retain_graph=True)
                self.manual_backward(loss)
                gradients.append(self.layer.weight.grad.clone())  # type: ignore[union-attr]
                optimizer.step()

        gradients: list[Tensor] = []
        module = Toggling()
        quiet_trainer(tmp_path).fit(module, loader(1))
        expected = Regression()
        expected.load_state_dict(module.state_dict())
        assert len(gradients) == 1

        class Own(Toggling):
            def backward(self, loss: Tensor) -> None:
                loss.backward()  # type: ignore[no-untyped-call]

        with pytest.raises(TypeError, match="overrides `backward`, cannot pass"):
            quiet_trainer(tmp_path).fit(Own(), loader(1))

    def test_two_backwards_over_a_kept_graph_add_up(self, tmp_path: Path) -> None:
        class Twice(Regression):
            automatic_optimization = False

            def training_step(self, batch: Any, batch_idx: int) -> None:  # type: ignore[override]
                loss = self.loss(batch)
                self.manual_backward(loss, retain_graph=True)
                once.append(self.layer.weight.grad.clone())  # type: ignore[union-attr]
                self.manual_backward(loss)
                twice.append(self.layer.weight.grad.clone())  # type: ignore[union-attr]
                self.optimizers().step()  # type: ignore[union-attr]

        once: list[Tensor] = []
        twice: list[Tensor] = []
        quiet_trainer(tmp_path).fit(Twice(), loader(1))
        torch.testing.assert_close(twice[0], 2 * once[0])

    def test_options_of_log_that_ask_for_the_same_are_taken(self, tmp_path: Path) -> None:
        class Logging(Regression):
            def training_step(self, batch: Any, batch_idx: int) -> Tensor:
                loss = super().training_step(batch, batch_idx)
                self.log("a", batch_idx, reduce_fx=torch.mean, tbptt_reduce_fx=torch.mean, tbptt_pad_token=0)
                self.log("b", 1.0, sync_dist=False, sync_dist_op="sum", sync_dist_group=None)
                self.log_dict({"c": 2.0}, reduce_fx="sum", sync_dist=True, sync_dist_op="sum", on_epoch=True)
                return loss

        trainer = quiet_trainer(tmp_path)
        trainer.fit(Logging(), loader(2))
        assert float(trainer.callback_metrics["c_epoch"]) == 4.0

    @pytest.mark.parametrize(
        ("options", "error", "message"),
        [
            (
                {"sync_dist": True, "sync_dist_op": "sum"},
                ValueError,
                "`sync_dist_op` must be left out, or what `reduce_fx`",
            ),
            ({"tbptt_reduce_fx": torch.max}, ValueError, "`tbptt_reduce_fx` must be left out, or what `reduce_fx` is"),
            ({"tbptt_pad_token": 1}, ValueError, "`tbptt_pad_token` must be left out, since nothing is padded"),
            ({"sync_dist_group": "some"}, ValueError, "`sync_dist_group` must be left out: all processes"),
            ({"on_steps": True}, TypeError, r"log\(\) got an unexpected keyword argument 'on_steps'"),
        ],
    )
    def test_options_of_log_that_ask_for_something_else_are_refused(
        self, options: dict[str, Any], error: type[Exception], message: str
    ) -> None:
        with pytest.raises(error, match=message):
            Regression().log("a", 1.0, **options)

    @pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
    def test_torchscript_holds_forward(self, tmp_path: Path) -> None:
        module = Regression(dropout=0.5)
        quiet_trainer(tmp_path).fit(module, loader(1))
        module.train()
        inputs = torch.randn(2, 3)
        with pytest.raises(
            ValueError, match="`example_inputs` must be given, or the module's `example_input_array` set"
        ):
            module.to_torchscript(method="trace")
        with pytest.raises(ValueError, match="`method` must be 'script' or 'trace', but got 'onnx'"):
            module.to_torchscript(method="onnx")
        module.example_input_array = inputs
        exported = module.to_torchscript(tmp_path / "module.pt", method="trace")
        assert module.training and isinstance(module.trainer, Trainer)
        Regression().to_torchscript(method="trace", example_inputs=inputs)  # without a trainer
        module.eval()
        for one in (exported, torch.jit.load(tmp_path / "module.pt"), module.to_torchscript()):
            torch.testing.assert_close(one(torch.ones(4, 3)), module(torch.ones(4, 3)))

    def test_an_export_to_onnx_needs_an_example(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="`input_sample` must be given"):
            Regression().to_onnx(tmp_path / "module.onnx")

    def test_onnx_holds_forward(self, tmp_path: Path) -> None:
        pytest.importorskip("onnxscript", reason="torch exports to ONNX with it")
        Regression().to_onnx(tmp_path / "module.onnx", torch.randn(2, 3))
        assert (tmp_path / "module.onnx").stat().st_size


class Line(TrainingModule):
    """A line without hyperparameters."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return nn.functional.mse_loss(self.layer(batch[0]), batch[1])


class WithHparams(Line):
    """As of 2020: everything in one namespace."""

    def __init__(self, hparams: Any) -> None:
        super().__init__()
        self.hparams = hparams

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=self.hparams.lr)


class UnderAnyName(Line):
    def __init__(self, options: Any) -> None:
        super().__init__()
        self.save_hyperparameters(options, ignore="path")

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=self.hparams["lr"])


@pytest.mark.parametrize("kind", [WithHparams, UnderAnyName])
@pytest.mark.parametrize(
    "values", [Namespace(lr=0.1, sizes=[1, 2]), {"lr": 0.1, "sizes": [1, 2]}], ids=["namespace", "dict"]
)
class TestHparams:
    def test_they_are_read_both_ways(self, kind: Any, values: Any) -> None:
        hparams = kind(values).hparams
        assert hparams.lr == hparams["lr"] == vars(hparams)["lr"] == Namespace(**vars(hparams)).lr == 0.1
        assert "lr" in hparams and getattr(hparams, "width", 5) == 5
        hparams.width = 3
        assert vars(hparams) == {"lr": 0.1, "sizes": [1, 2], "width": 3}

    def test_they_are_logged_saved_and_given_back(self, kind: Any, values: Any, tmp_path: Path) -> None:
        logger, module = ListLogger(), kind(values)
        trainer = quiet_trainer(tmp_path, logger=logger)
        trainer.fit(module, loader(1))
        assert logger.hparams == [{"lr": 0.1, "sizes": [1, 2]}]
        trainer.save_checkpoint(tmp_path / "one.ckpt")
        loaded = kind.load_from_checkpoint(checkpoint_path=tmp_path / "one.ckpt")
        assert loaded.hparams == {"lr": 0.1, "sizes": [1, 2]}
        assert_same(weights(loaded), weights(module))

    def test_copies_are_of_the_same_kind(self, kind: Any, values: Any) -> None:
        module = kind(values)
        for other in (deepcopy(module), pickle.loads(pickle.dumps(module))):
            assert type(other.hparams) is type(module.hparams)
            other.hparams.lr = 9
            assert module.hparams.lr == 0.1


def test_what_is_not_plain_is_given_back_to_who_trusts_the_file(tmp_path: Path) -> None:
    module = WithHparams(Namespace(lr=0.1, path=tmp_path, act=torch.relu))
    logger, path = ListLogger(), tmp_path / "one.ckpt"
    trainer = quiet_trainer(tmp_path, logger=logger)
    trainer.fit(module, loader(1))
    trainer.save_checkpoint(path)
    expected = {"lr": 0.1, "path": tmp_path, "act": torch.relu}
    assert logger.hparams == [expected]
    with pytest.raises(TypeError, match=r"`path`, `act` must be passed, but got a checkpoint .*weights_only=False"):
        WithHparams.load_from_checkpoint(path)
    assert WithHparams.load_from_checkpoint(path, path=tmp_path, act=torch.relu).hparams == expected
    assert WithHparams.load_from_checkpoint(path, weights_only=False).hparams == expected


def test_none_and_other_things_as_hparams() -> None:
    module = Regression()
    module.hparams = None
    assert module.hparams == {}
    with pytest.raises(TypeError, match="`hparams` must be a namespace or a dictionary, but got 3"):
        module.hparams = 3  # type: ignore[assignment]


def test_a_path_is_needed_once(tmp_path: Path) -> None:
    for arguments in ({}, {"path": "a", "checkpoint_path": "b"}):
        with pytest.raises(TypeError, match="`path` must be passed once"):
            Regression.load_from_checkpoint(**arguments)


def test_hyperparameters_beside_the_weights_are_read(tmp_path: Path) -> None:
    trainer = quiet_trainer(tmp_path)
    trainer.fit(WithHparams({"lr": 0.1}), loader(1))
    trainer.save_checkpoint(tmp_path / "one.ckpt")
    (tmp_path / "meta_tags.csv").write_text("key,value\nlr,0.5\nname,abc\n")
    loaded = WithHparams.load_from_metrics(tmp_path / "one.ckpt", tmp_path / "meta_tags.csv")
    assert loaded.hparams == {"lr": 0.5, "name": "abc"}


class TestDataModule:
    def test_it_keeps_its_transforms_and_tells_the_shape_of_an_example(self) -> None:
        data = DataModule(str.upper, dims=(1, 28))
        assert (data.train_transforms, data.val_transforms) == (str.upper, None)
        assert (data.size(), data.size(1), DataModule().size()) == ((1, 28), 28, ())

    def test_a_subclass_may_have_what_it_likes_of_these_names(self) -> None:
        class Own(DataModule):
            dims = property(lambda self: (3, 2))

        assert Own().size() == (3, 2)


class TestSuper:
    def test_nothing_of_the_base_classes_counts_as_overridden(self) -> None:
        class Empty(TrainingModule):
            pass

        assert not {name for name in candidates(Empty()) if name in hooks_of_eras() or name.startswith("on_")}
        for name in vars(EarlierHooks):
            if not name.startswith("_"):
                assert not is_overridden(Empty(), name)
        assert not is_overridden(DataModule(), "setup")

    @pytest.mark.parametrize(
        "name", sorted(name for name in vars(EarlierHooks) if name.startswith(("on_", "training_")))
    )
    def test_events_take_any_arguments(self, name: str) -> None:
        module = Regression()
        assert getattr(super(Regression, module), name)() is None
        assert getattr(super(Regression, module), name)([1], dataloader_idx=0) is None

    def test_what_took_other_arguments_is_a_hook_of_today_or_data(self) -> None:
        assert {name for name in vars(EarlierDataHooks) if not name.startswith("_")} <= vars(DataHooks).keys()
        assert {"optimizer_step", "backward", "lr_scheduler_step", "on_train_epoch_end"} <= vars(ModelHooks).keys()

    @pytest.mark.parametrize("form", ["0.x", "1.0", "1.1", "2.x"])
    def test_an_update_calls_the_closure(self, form: str) -> None:
        module, calls = Regression(), []
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)

        def closure() -> None:
            calls.append(form)

        if form in ("0.x", "1.1"):
            module.optimizer_step(0, 1, optimizer, 0, closure)  # type: ignore[call-arg, arg-type]
        elif form == "1.0":
            module.optimizer_step(  # type: ignore[call-arg]
                epoch=0, batch_idx=1, optimizer=optimizer, optimizer_idx=0, optimizer_closure=closure, on_tpu=False
            )
        else:
            module.optimizer_step(0, 1, optimizer, closure)
        assert calls == [form]

    def test_a_closure_that_knows_its_release_decides(self) -> None:
        class Closure:
            def __call__(self) -> None:
                raise AssertionError

            def step_by_default(self) -> None:
                calls.append("default")

        calls: list[str] = []
        module = Regression()
        module.optimizer_step(0, 1, torch.optim.SGD(module.parameters()), 0, second_order_closure=Closure())  # type: ignore[call-arg, arg-type]
        assert calls == ["default"]

    @pytest.mark.parametrize(
        "arguments", ["loss", "loss, optimizer, 0", "None, loss, optimizer, 0", "object(), loss, optimizer, 0"]
    )
    def test_backward_finds_its_loss(self, arguments: str) -> None:
        module = Regression()
        names = {"loss": module.layer.weight.sum(), "optimizer": torch.optim.SGD(module.parameters())}
        eval(f"module.backward({arguments})", {"module": module, **names})
        assert torch.equal(module.layer.weight.grad, torch.ones(1, 3))  # type: ignore[arg-type]

    def test_other_overrides_take_an_index_of_the_optimizer(self) -> None:
        module: Any = Regression()
        optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        for arguments in ((), (0.25, "value"), (0, 0.25, "value")):
            module.layer.weight.grad = torch.ones(1, 3)
            module.configure_gradient_clipping(optimizer, *arguments)
            assert float(module.layer.weight.grad.max()) == (0.25 if arguments else 1.0)
        module.optimizer_zero_grad(0, 0, optimizer, 0)
        assert module.layer.weight.grad is None
        optimizer.step()
        module.lr_scheduler_step(scheduler, 0, None)
        module.lr_scheduler_step(scheduler, None)
        module.lr_scheduler_step(scheduler, optimizer_idx=0, metric=None)
        assert scheduler.last_epoch == 3
        assert torch.equal(module.transfer_batch_to_device(torch.ones(1), torch.device("cpu")), torch.ones(1))

    def test_set_up_hooks_do_what_the_default_did(self, capsys: pytest.CaptureFixture[str]) -> None:
        module: Any = Regression()
        optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        optimizers, schedulers, frequencies = module.init_optimizers(([optimizer], [scheduler]))
        assert (optimizers, frequencies) == ([optimizer], [])
        assert [one["scheduler"] for one in schedulers] == [scheduler]
        module.summarize("top")
        assert "Linear" in capsys.readouterr().out
        module.summarize(None)
        assert capsys.readouterr().out == ""
        with pytest.raises(ValueError, match="`mode` must be 'top', 'full' or None"):
            module.summarize("all")
        for name, action in (
            ("configure_ddp", "Call it in an override of `configure_ddp` alone"),
            ("init_ddp_connection", "Call it in an override of `init_ddp_connection` alone"),
        ):
            with pytest.raises(NotImplementedError, match=f"`{name}` must be left to the trainer's strategy.*{action}"):
                getattr(module, name)(None, None)

    def test_old_overrides_that_call_super_train_as_without(self, tmp_path: Path) -> None:
        class Calling(Regression):
            def on_epoch_start(self) -> None:
                super().on_epoch_start()  # type: ignore[misc]
                calls.append("on_epoch_start")

            def optimizer_step(  # type: ignore[override]
                self, epoch: int, batch_idx: int, optimizer: Any, optimizer_idx: int, optimizer_closure: Any,
                on_tpu: bool = False, using_native_amp: bool = False, using_lbfgs: bool = False,
            ) -> None:  # fmt: skip
                super().optimizer_step(  # type: ignore[call-arg]
                    epoch, batch_idx, optimizer, optimizer_idx, optimizer_closure, on_tpu, using_native_amp, using_lbfgs
                )

            def training_epoch_end(self, outputs: Any) -> None:
                super().training_epoch_end(outputs)  # type: ignore[misc]
                calls.append("training_epoch_end")

        calls: list[str] = []
        torch.manual_seed(0)
        old, new = Calling(), Regression()
        new.load_state_dict(old.state_dict())
        quiet_trainer(tmp_path).fit(old, loader(3))
        quiet_trainer(tmp_path).fit(new, loader(3))
        assert_same(weights(old), weights(new))
        assert "on_epoch_start" in calls and "training_epoch_end" in calls


@pytest.mark.parametrize(("name", "advice"), [("precision", "strategy.precision"), ("gpus", "num_devices")])
def test_a_setting_without_equal_is_refused_with_what_to_use(tmp_path: Path, name: str, advice: str) -> None:
    with pytest.raises(AttributeError, match=f"{name}.*{advice}"):
        setattr(quiet_trainer(tmp_path), name, 1)


@pytest.mark.parametrize(
    ("name", "closest"),
    [
        ("max_epoch", r"max_epochs`\?$"),
        ("shold_stop", r"should_stop`\?$"),
        ("current_epochs", r"current_epoch`\? It can only be read\.$"),
    ],
)
def test_a_misspelt_setting_is_refused_with_the_closest_name(tmp_path: Path, name: str, closest: str) -> None:
    with pytest.raises(AttributeError, match=rf"`{name}` must be an attribute of Trainer.*Did you mean `{closest}"):
        setattr(quiet_trainer(tmp_path), name, 1)


def test_a_name_of_the_users_own_may_be_like_one_that_can_only_be_read(tmp_path: Path) -> None:
    trainer = quiet_trainer(tmp_path)
    trainer.logdir = "logs"
    assert trainer.logdir == "logs"


def test_a_subclass_may_set_what_it_likes_before_the_constructor_which_decides(tmp_path: Path) -> None:
    class Own(Trainer):
        def __init__(self, **arguments: Any) -> None:
            self.devices, self.max_epochs, self.logger, self.callbacks = 1, 7, "none", []
            super().__init__(**arguments)

    trainer = Own(default_root_dir=tmp_path, max_epochs=3, logger=False)
    assert (trainer.devices, trainer.max_epochs, trainer.logger) == (1, 3, None)
    assert trainer.callbacks


def test_val_check_batch_is_known_once_the_loaders_are(tmp_path: Path) -> None:
    trainer = quiet_trainer(tmp_path, max_epochs=1, val_check_interval=0.5)
    assert trainer.val_check_batch is None
    trainer.fit(Regression(), loader(4), loader(2))
    assert trainer.val_check_batch == 2
    trainer = quiet_trainer(tmp_path, max_epochs=1)
    trainer.fit(Regression(), loader(4), loader(2))
    assert trainer.val_check_batch == 4


def test_devices_and_shares(tmp_path: Path) -> None:
    trainer = quiet_trainer(tmp_path, accelerator="cpu")
    assert (trainer.device_ids, trainer.distributed_sampler_kwargs) == ([0], None)
    parallel = quiet_trainer(tmp_path, accelerator="cpu", strategy="DDP", devices=1)
    assert (parallel.device_ids, parallel.distributed_sampler_kwargs) == ([0], {"num_replicas": 1, "rank": 0})
