"""Strategies, precisions, environments and checkpoint plugins of one's own, as subclasses of those under the names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from compat_parts import quiet_trainer
from torch import nn
from torch.distributed.fsdp.wrap import ModuleWrapPolicy, transformer_auto_wrap_policy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import camshaft.strategies as strategies
from camshaft.compat import Trainer, TrainingModule
from camshaft.compat.names.plugins.accelerators import Accelerator, CPUAccelerator, CUDAAccelerator
from camshaft.compat.names.plugins.base_strategy import Strategy
from camshaft.compat.names.plugins.checkpoint_io import AsyncCheckpointIO, CheckpointIO, TorchCheckpointIO
from camshaft.compat.names.plugins.environments import ClusterEnvironment, LightningEnvironment, SLURMEnvironment
from camshaft.compat.names.plugins.fsdp import FSDPStrategy
from camshaft.compat.names.plugins.precision import HalfPrecision, MixedPrecision, Precision
from camshaft.compat.names.plugins.registries import MODEL_REGISTRY, StrategyRegistry, register_classes
from camshaft.compat.names.plugins.strategies import DDPPlugin, DDPStrategy, ParallelStrategy, SingleDeviceStrategy
from camshaft.compat.names.trainer.model_checkpoint import ModelCheckpoint
from camshaft.compat.names.utilities.functions import optimizers_to_device

pytestmark = [pytest.mark.filterwarnings("ignore:Arguments of the trainer")]


LOADER = DataLoader(TensorDataset(torch.randn(8, 3, generator=torch.Generator().manual_seed(1))), 4)


@pytest.fixture(autouse=True)
def no_process_group() -> Iterator[None]:
    """Other tests are not to join the group of a strategy of one process."""
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


class Line(TrainingModule):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(3, 1)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.layer(batch[0]).square().mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 0.1)


def trainer_of(tmp_path: Path, **arguments: Any) -> Trainer:
    return quiet_trainer(tmp_path, **{"max_epochs": 1, "accelerator": "cpu", "devices": 1, **arguments})


def fitted(tmp_path: Path, **arguments: Any) -> tuple[Trainer, Line]:
    trainer, module = trainer_of(tmp_path, **arguments), Line()
    trainer.fit(module, LOADER)
    return trainer, module


# as they are


def test_strategies_take_what_they_were_not_made_with_from_the_trainer(tmp_path: Path) -> None:
    made = DDPStrategy(find_unused_parameters=False, gradient_as_bucket_view=True, process_group_backend="gloo")
    assert isinstance(made, DDPStrategy) and not isinstance(made, FSDPStrategy)
    trainer = trainer_of(tmp_path, strategy=made, precision="bf16-mixed")
    assert trainer.strategy is made and isinstance(made, strategies.DDPStrategy)
    assert (made.device.type, made.precision.name, made.num_processes) == ("cpu", "bf16-mixed", 1)
    assert made.parallel_devices == [torch.device("cpu")] and made.root_device == torch.device("cpu")
    assert isinstance(trainer_of(tmp_path, strategy="ddp").strategy, DDPStrategy)
    sharded = FSDPStrategy(cpu_offload=True, accelerator="cpu", parallel_devices=["cpu"])
    assert isinstance(trainer_of(tmp_path, strategy=sharded).strategy, strategies.ShardedStrategy)


def test_arguments_of_lightnings_strategies_become_todays() -> None:
    hook: Any = lambda state, bucket: bucket  # noqa: E731
    made = DDPStrategy(
        accelerator=CPUAccelerator(),
        cluster_environment=LightningEnvironment(),
        precision_plugin=MixedPrecision("bf16-mixed", "cpu"),
        ddp_comm_hook=hook,
        ddp_comm_wrapper=lambda inner: [inner],
        ddp_comm_state=3,
        bucket_cap_mb=7,
    ).native_arguments()
    assert made["precision"].name == "bf16-mixed" and made["accelerator"] == "cpu"
    assert (made["comm_hook"], made["comm_state"], made["bucket_cap_mb"]) == ([hook], 3, 7)
    assert DDPPlugin().native_arguments()["find_unused_parameters"] is True
    blocks = partial(transformer_auto_wrap_policy, transformer_layer_cls={nn.Linear})
    for policy, expected in ((blocks, {nn.Linear}), (ModuleWrapPolicy({nn.GRU}), {nn.GRU}), ({nn.GRU}, {nn.GRU})):
        assert FSDPStrategy(auto_wrap_policy=policy).native_arguments()["policy"] == expected
    hybrid = FSDPStrategy(sharding_strategy="HYBRID_SHARD", device_mesh=(2, 4)).native_arguments()
    assert hybrid["data_parallel_replicas"] == 2
    assert FSDPStrategy(sharding_strategy="SHARD_GRAD_OP").native_arguments()["reshard_after_forward"] is False
    assert FSDPStrategy(forward_prefetch=True).native_arguments()["prefetch"] == 1


def policy(module: Any, recurse: Any, nonwrapped_numel: Any) -> bool:
    return True


LOCAL_SGD = type("PostLocalSGDState", (), {})()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FSDPStrategy(checkpoint_io=TorchCheckpointIO()), "`checkpoint_io` must be left out, since all ranks"),
        (lambda: SingleDeviceStrategy(precision_plugin="16"), "`precision_plugin` must be a precision"),
        (lambda: SingleDeviceStrategy("cpu", CUDAAccelerator()), "`accelerator` must be one for 'cpu'"),
        (lambda: DDPStrategy(model_averaging_period=2, ddp_comm_state=LOCAL_SGD), "`model_averaging_period` must be"),
        (lambda: FSDPStrategy(sharding_strategy="NO_SHARD"), "`sharding_strategy` must be one of FULL_SHARD"),
        (lambda: FSDPStrategy(sharding_strategy="HYBRID_SHARD"), "`device_mesh` must be a tuple of two numbers"),
        (lambda: FSDPStrategy(auto_wrap_policy=policy), "policy of classes"),
        (lambda: FSDPStrategy(mixed_precision="bf16"), "`mixed_precision` must be a torch.distributed.fsdp.Mixed"),
    ],
)
def test_arguments_without_counterpart_are_refused_by_the_trainer_and_not_before(
    make: Any, message: str, tmp_path: Path
) -> None:
    strategy = make()
    with pytest.raises((TypeError, ValueError), match=message):
        trainer_of(tmp_path, strategy=strategy)


def test_a_sharded_strategy_may_have_a_plugin_that_its_own_method_uses(tmp_path: Path) -> None:
    class Own(FSDPStrategy):
        def save_checkpoint(self, checkpoint: Any, filepath: Any, storage_options: Any = None) -> None:
            self.checkpoint_io.save_checkpoint({"epoch": checkpoint["epoch"]}, f"{filepath}.own")
            super().save_checkpoint(checkpoint, filepath, storage_options)

    trainer, _ = fitted(tmp_path, strategy=Own(checkpoint_io=TorchCheckpointIO()))
    trainer.save_checkpoint(tmp_path / "x.ckpt")
    assert (tmp_path / "x.ckpt.own").exists()
    again = trainer_of(tmp_path, strategy="fsdp", max_epochs=2)
    again.fit(Line(), LOADER, ckpt_path=tmp_path / "x.ckpt")
    assert again.global_step == 2 * 2


def test_arguments_without_effect_are_told_of(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="use_orig_params, limit_all_gathers have no effect"):
        trainer_of(tmp_path, strategy=FSDPStrategy(use_orig_params=True, limit_all_gathers=True))
    with pytest.warns(UserWarning, match="state_dict_type='full': checkpoints are folders"):
        trainer_of(tmp_path, strategy=FSDPStrategy(state_dict_type="full"))


@pytest.mark.parametrize("name", ["auto", "ddp", "fsdp"])
def test_strategies_chosen_by_a_name_have_the_attributes_that_code_reads(name: str, tmp_path: Path) -> None:
    trainer, module = fitted(tmp_path, strategy=name, precision="bf16-mixed")
    strategy = trainer.strategy
    assert strategy.model is strategy.lightning_module is module and isinstance(strategy, Strategy)
    assert isinstance(strategy.checkpoint_io, TorchCheckpointIO) and isinstance(strategy.accelerator, CPUAccelerator)
    assert (
        isinstance(strategy.precision_plugin, MixedPrecision) and trainer.precision_plugin is strategy.precision_plugin
    )
    with trainer.precision_plugin.forward_context():
        assert torch.is_autocast_enabled("cpu")
    if name != "auto":
        assert isinstance(strategy.cluster_environment, LightningEnvironment)
        assert (strategy.cluster_environment.world_size(), strategy.cluster_environment.global_rank()) == (1, 0)
        assert strategy.parallel_devices == [torch.device("cpu")] and strategy.num_processes == 1
    trainer.save_checkpoint(tmp_path / "x.ckpt")
    strategy.remove_checkpoint(tmp_path / "x.ckpt")
    assert not (tmp_path / "x.ckpt").exists()
    optimizers_to_device(strategy.optimizers, "meta")


def test_one_device_is_the_cpu_by_default() -> None:
    assert SingleDeviceStrategy().device.type == "cpu"
    own = SingleDeviceStrategy("cpu", CPUAccelerator(), precision_plugin=MixedPrecision("bf16-mixed", "cpu"))
    assert own.precision.name == "bf16-mixed"
    assert isinstance(strategies.SingleDeviceStrategy("cpu"), SingleDeviceStrategy)


# subclasses


class Recording:
    """Overrides of all methods that are called, with the arguments of Lightning's."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.calls: list[Any] = []


def note(name: str, *facts: Any) -> Any:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        self.calls.append((name, *[fact(self, *args, **kwargs) for fact in facts]))
        return getattr(super(kinds[type(self)], self), name)(*args, **kwargs)

    return method


kinds: dict[type, type] = {}
NAMES = [
    *("connect", "setup_environment", "setup", "model_to_device", "setup_optimizers", "on_train_start"),
    *("on_train_batch_start", "training_step", "batch_to_device", "backward", "pre_backward", "post_backward"),
    *("optimizer_step", "on_train_end", "save_checkpoint", "teardown"),
]


def recording(base: type, *further: str) -> type:
    """A subclass that notes the calls of methods, with the types of their arguments."""

    def types(self: Any, *args: Any, **kwargs: Any) -> Any:
        return [type(one).__name__ for one in args] + sorted(kwargs)

    space = {name: note(name, types) for name in (*NAMES, *further)}
    kind = type("Own", (Recording, base), {})
    made = type("OwnStrategy", (kind,), space)
    kinds[made] = made
    return made


def test_overrides_get_lightnings_arguments_in_their_order(tmp_path: Path) -> None:
    strategy = recording(DDPStrategy, "setup_distributed", "configure_ddp", "_setup_model")()
    _, module = fitted(tmp_path, strategy=strategy, enable_checkpointing=True, limit_train_batches=1)
    calls = [(name, *found) for name, found in strategy.calls]
    assert calls == [
        ("connect", "Line"),
        ("setup_environment",),
        ("setup_distributed",),
        ("setup", "Trainer"),
        ("model_to_device",),
        ("setup_optimizers", "Trainer"),
        ("configure_ddp",),
        ("_setup_model", "Computing"),
        ("on_train_start",),
        ("batch_to_device", "list", "dataloader_idx"),
        ("on_train_batch_start", "list", "int"),
        ("training_step", "list", "int"),
        ("backward", "Tensor", "SGD"),
        ("pre_backward", "Tensor"),
        ("post_backward", "Tensor"),
        ("optimizer_step", "SGD", "Done"),
        ("save_checkpoint", "dict", "str"),
        ("on_train_end",),
        ("teardown",),
    ]
    assert strategy.lightning_module is module and strategy.model is module


@pytest.mark.parametrize("base", [DDPStrategy, SingleDeviceStrategy, FSDPStrategy])
def test_overrides_that_call_super_change_nothing(base: Any, tmp_path: Path) -> None:
    _, plain = fitted(tmp_path, strategy=base())
    _, own = fitted(tmp_path, strategy=recording(base)())
    for name, value in plain.state_dict().items():
        assert torch.equal(torch.as_tensor(value), torch.as_tensor(own.state_dict()[name]))


def test_what_is_never_called_is_told_of_once_in_use(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    class Own(DDPStrategy):
        def block_backward_sync(self) -> Any:
            raise AssertionError

        def all_gather(self, tensor: Any, group: Any = None, sync_grads: bool = False) -> Any:
            raise AssertionError

    trainer = trainer_of(tmp_path, strategy=Own())
    assert not [one for one in recwarn if "nothing calls" in str(one.message)]
    for _ in range(2):
        trainer.fit(Line(), LOADER)
    told = [str(one.message) for one in recwarn if "nothing calls" in str(one.message)]
    assert told == [
        "Own overrides `all_gather`, `block_backward_sync`, which nothing calls here. Do it in a method that is "
        "called, or in a callback."
    ]


def test_a_strategy_gathers_a_list_and_the_module_a_tensor(tmp_path: Path) -> None:
    trainer, module = fitted(tmp_path, strategy="ddp")
    assert trainer.strategy.all_gather("any") == ["any"]
    assert trainer.strategy.all_gather(torch.ones(2), sync_grads=True).shape == (1, 2)
    assert module.all_gather(torch.ones(2)).shape == (1, 2)
    with pytest.raises(ValueError, match="`group` must be None"):
        trainer.strategy.reduce(torch.ones(1), dist.new_group([0]), "sum")


def test_an_override_of_process_dataloader_changes_what_is_read(tmp_path: Path) -> None:
    seen: list[str] = []

    class Own(DDPStrategy):
        def process_dataloader(self, dataloader: Any) -> Any:
            dataloader = super().process_dataloader(dataloader)
            return DataLoader(TensorDataset(dataloader.dataset.tensors[0][:2] + 5.0), 1)

    class Module(Line):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            seen.append(f"train {batch[0].shape[0]} {bool((batch[0] > 1).all())}")
            return super().training_step(batch, batch_idx)

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            seen.append(f"validate {batch[0].shape[0]}")

    trainer = trainer_of(tmp_path, strategy=Own(), num_sanity_val_steps=0)
    trainer.fit(Module(), LOADER, LOADER)
    assert seen == ["train 1 True"] * 2 + ["validate 1"] * 2


@pytest.mark.parametrize("base", [DDPStrategy, SingleDeviceStrategy])
def test_optimizer_states_are_those_that_the_strategy_tells(base: Any, tmp_path: Path) -> None:
    class Telling(torch.optim.SGD):
        """As torch's `ZeroRedundancyOptimizer`: its state can be told once it was consolidated."""

        is_consolidated = False

        def consolidate_state_dict(self, to: int = 0) -> None:
            self.is_consolidated = True

        def state_dict(self) -> Any:
            if not self.is_consolidated:
                raise RuntimeError("Optimizer state has not been consolidated on this rank.")
            return super().state_dict()

    class Module(Line):
        def configure_optimizers(self) -> Any:
            return Telling(self.parameters(), 0.1)

    class Own(base):  # type: ignore[misc]
        def optimizer_state(self, optimizer: Any) -> Any:
            return {**super().optimizer_state(optimizer), "own": 1}

    trainer = trainer_of(tmp_path, strategy=Own())
    trainer.fit(Module(), LOADER)
    trainer.save_checkpoint(tmp_path / "saved.ckpt")
    [state] = torch.load(tmp_path / "saved.ckpt", weights_only=True)["optimizer_states"]
    assert state["own"] == 1 and state["param_groups"][0]["lr"] == 0.1


def test_a_static_graph_may_be_set_where_the_module_is_wrapped(tmp_path: Path) -> None:
    class Own(DDPStrategy):
        def configure_ddp(self) -> None:
            self._model = self._setup_model(self.model)
            self._register_ddp_hooks()
            self._model._set_static_graph()

        def on_train_start(self) -> None:
            self.is_static = self.model.static_graph

    trainer, _ = fitted(tmp_path, strategy=Own())
    assert trainer.strategy.is_static


def test_an_override_may_wrap_the_module_by_itself(tmp_path: Path) -> None:
    class Wrapped(DistributedDataParallel):
        pass

    class Own(DDPStrategy):
        def __init__(self, **kwargs: Any) -> None:
            super().__init__(**kwargs)
            self._ddp_kwargs["find_unused_parameters"] = True

        def _setup_model(self, model: Any) -> Any:
            return Wrapped(module=model, device_ids=self.determine_ddp_device_ids(), **self._ddp_kwargs)

        def on_train_start(self) -> None:
            self.found = (type(self.model), self.model.find_unused_parameters)

    trainer, _ = fitted(tmp_path, strategy=Own())
    assert trainer.strategy.found == (Wrapped, True)


def test_properties_for_ranks_and_device_count(tmp_path: Path) -> None:
    class Own(SingleDeviceStrategy):
        @property
        def root_device(self) -> torch.device:
            return torch.device("meta")

        @property
        def global_rank(self) -> int:
            return 3

    trainer = trainer_of(tmp_path, strategy=Own(), accelerator="auto")
    assert (trainer.strategy.device.type, trainer.global_rank) == ("meta", 3)


def test_the_module_may_stay_where_it_is(tmp_path: Path) -> None:
    class Own(SingleDeviceStrategy):
        def model_to_device(self) -> None:
            self.stays = self.model

    trainer, module = fitted(tmp_path, strategy=Own())
    assert trainer.strategy.stays is module


def test_optimizers_that_an_override_sets_are_those_of_the_fit(tmp_path: Path) -> None:
    class Own(SingleDeviceStrategy):
        def setup_optimizers(self, trainer: Any) -> None:
            super().setup_optimizers(trainer)
            assert type(self.optimizers[0]) is torch.optim.SGD
            self.optimizers = [torch.optim.Adam(self.model.parameters(), 0.1)]

    trainer, _ = fitted(tmp_path, strategy=Own())
    assert type(trainer.optimizers[0]) is torch.optim.Adam


def test_weights_are_loaded_and_saved_by_overrides(tmp_path: Path) -> None:
    class Own(SingleDeviceStrategy):
        def lightning_module_state_dict(self) -> Any:
            return {name: value for name, value in super().lightning_module_state_dict().items() if "bias" in name}

        def load_model_state_dict(self, checkpoint: Any) -> None:
            self.loaded = sorted(checkpoint["state_dict"])
            self.lightning_module.load_state_dict(checkpoint["state_dict"], strict=False)

        def load_optimizer_state_dict(self, checkpoint: Any) -> None:
            self.states = len(checkpoint["optimizer_states"])

    trainer, _ = fitted(tmp_path, strategy=Own())
    trainer.save_checkpoint(tmp_path / "x.ckpt")
    again = trainer_of(tmp_path, strategy=Own(), max_epochs=2)
    again.fit(Line(), LOADER, ckpt_path=tmp_path / "x.ckpt")
    assert (again.strategy.loaded, again.strategy.states) == (["layer.bias"], 1)


def test_a_checkpoint_is_written_and_read_by_overrides(tmp_path: Path) -> None:
    class Own(DDPStrategy):
        def save_checkpoint(self, checkpoint: Any, filepath: Any, storage_options: Any = None) -> None:
            if self.is_global_zero:
                torch.save({**checkpoint, "own": True}, filepath)

        def load_checkpoint(self, checkpoint_path: Any) -> Any:
            return torch.load(checkpoint_path, weights_only=False)

    trainer, _ = fitted(tmp_path, strategy=Own())
    trainer.save_checkpoint(tmp_path / "x.ckpt")
    again = trainer_of(tmp_path, strategy=Own(), max_epochs=2)
    again.fit(Line(), LOADER, ckpt_path=tmp_path / "x.ckpt")
    assert again.current_run is not None and again.current_run.checkpoint["own"] and again.global_step == 2 * 2


# names


def test_strategies_are_registered_and_found_by_name(tmp_path: Path) -> None:
    class Own(DDPStrategy):
        strategy_name = "own"

        @classmethod
        def register_strategies(cls, strategy_registry: Any) -> None:
            strategy_registry.register(cls.strategy_name, cls, description="mine", find_unused_parameters=True)

    register_classes(StrategyRegistry, "register_strategies", type("module", (), {"Own": Own}), Strategy)  # type: ignore[arg-type]
    try:
        assert StrategyRegistry["own"]["init_params"] == {"find_unused_parameters": True}
        assert StrategyRegistry["own"]["strategy"] is Own and StrategyRegistry["own"]["description"] == "mine"
        assert {"ddp", "fsdp", "own"} <= set(StrategyRegistry.available_strategies())
        trainer = trainer_of(tmp_path, strategy="own")
        assert type(trainer.strategy) is Own
        assert trainer.strategy.native_arguments()["find_unused_parameters"] is True
        with pytest.raises(ValueError, match="`name` must be a new name"):
            StrategyRegistry.register("own", Own)
    finally:
        StrategyRegistry.remove("own")
    with pytest.raises(ValueError, match="`strategy` must be one of 'auto'"):
        trainer_of(tmp_path, strategy="own")

    @MODEL_REGISTRY
    class Model:
        pass

    assert MODEL_REGISTRY.pop("Model") is Model


# precisions


def test_precisions_of_ones_own_are_called_where_lightning_calls_them(tmp_path: Path) -> None:
    calls: list[Any] = []

    class Own(MixedPrecision):  # type: ignore[misc]
        def __init__(self, precision: str, device: str) -> None:
            super().__init__(precision, device)

        @contextmanager
        def forward_context(self) -> Iterator[None]:
            with super().forward_context():
                calls.append(torch.is_autocast_enabled("cpu"))
                yield

        def convert_module(self, module: Any) -> Any:
            calls.append("convert_module")
            return super().convert_module(module)

        def connect(self, model: Any, optimizers: Any, lr_schedulers: Any) -> Any:
            calls.append("connect")
            return super().connect(model, optimizers, lr_schedulers)

        def convert_input(self, data: Any) -> Any:
            calls.append("convert_input")
            return super().convert_input(data)

        def backward(self, tensor: Any, model: Any, optimizer: Any, *args: Any, **kwargs: Any) -> None:
            calls.append((type(model).__name__, type(optimizer).__name__))
            super().backward(tensor, model, optimizer, *args, **kwargs)

        def optimizer_step(self, optimizer: Any, model: Any, closure: Any, **kwargs: Any) -> Any:
            calls.append("optimizer_step")
            return super().optimizer_step(optimizer, model=model, closure=closure, **kwargs)

        def clip_grad_by_norm(self, optimizer: Any, clip_val: float) -> None:
            calls.append(("clip", clip_val))
            super().clip_grad_by_norm(optimizer, clip_val)

    own = Own("bf16-mixed", "cpu")
    assert own.precision == "bf16-mixed" and own.scaler is None and isinstance(own, MixedPrecision)
    arguments = {"limit_train_batches": 1, "gradient_clip_val": 0.5}
    trainer, module = fitted(tmp_path, plugins=[own], **arguments)
    assert calls == [
        "convert_module",
        "connect",
        "convert_input",
        True,
        ("Line", "SGD"),
        ("clip", 0.5),
        "optimizer_step",
    ]
    assert trainer.precision_plugin is own
    _, plain = fitted(tmp_path, precision="bf16-mixed", **arguments)
    assert torch.equal(module.layer.weight, plain.layer.weight)


def test_a_precision_may_leave_autocast_out_or_convert_all(tmp_path: Path) -> None:
    class Without(MixedPrecision):  # type: ignore[misc]
        @contextmanager
        def forward_context(self) -> Iterator[None]:
            yield

    class Half(HalfPrecision):  # type: ignore[misc]
        @contextmanager
        def forward_context(self) -> Iterator[None]:
            with super().forward_context():
                assert torch.ones(1).dtype == torch.bfloat16
                yield

    _, module = fitted(tmp_path, plugins=[Without("bf16-mixed", "cpu")])
    _, plain = fitted(tmp_path)
    assert torch.equal(module.layer.weight, plain.layer.weight)
    _, half = fitted(tmp_path, plugins=[Half("bf16-true")])
    _, expected = fitted(tmp_path, precision="bf16-true")
    assert half.layer.weight.dtype == torch.bfloat16 and torch.equal(half.layer.weight, expected.layer.weight)


class StepsAsLightning(MixedPrecision):  # type: ignore[misc]
    """Scales, unscales and steps by itself, as Lightning's own plugin of half precision."""

    def pre_backward(self, tensor: Any, module: Any) -> Any:
        return super().pre_backward(self.scaler.scale(tensor), module)

    def backward(self, tensor: Any, model: Any, optimizer: Any, *args: Any, **kwargs: Any) -> None:
        tensor.backward(*args, **kwargs)

    def optimizer_step(self, optimizer: Any, model: Any, closure: Any, **kwargs: Any) -> Any:
        result = closure()
        self.scaler.unscale_(optimizer)
        self._after_closure(model, optimizer)
        if result is None:
            return None
        output = self.scaler.step(optimizer, **kwargs)
        self.scaler.update()
        return output


def test_a_precision_may_scale_and_step_by_itself(tmp_path: Path) -> None:
    _, own = fitted(tmp_path, plugins=[StepsAsLightning("16-mixed", "cpu")], gradient_clip_val=0.1)
    _, plain = fitted(tmp_path, plugins=[MixedPrecision("16-mixed", "cpu")], gradient_clip_val=0.1)
    assert torch.equal(own.layer.weight, plain.layer.weight)


@pytest.mark.parametrize(("precision", "is_mixed"), [("bf16-mixed", True), ("32-true", False), ("bf16-true", False)])
def test_a_strategy_finds_lightnings_methods_in_every_precision(precision: str, is_mixed: bool, tmp_path: Path) -> None:
    class Own(SingleDeviceStrategy):
        def training_step(self, *args: Any, **kwargs: Any) -> Any:
            with self.precision_plugin.train_step_context():
                assert torch.is_autocast_enabled("cpu") == is_mixed
                return self._forward_redirection(self.model, self.lightning_module, "training_step", *args, **kwargs)

        def optimizer_step(self, optimizer: Any, closure: Any, model: Any = None, **kwargs: Any) -> Any:
            assert closure() is not None
            return self.precision_plugin.optimizer_step(optimizer, model=model, closure=closure, **kwargs)

    trainer, own = fitted(tmp_path, strategy=Own(), precision=precision)
    assert isinstance(trainer.strategy.precision_plugin, MixedPrecision) == is_mixed
    _, plain = fitted(tmp_path, precision=precision)
    assert torch.equal(own.layer.weight, plain.layer.weight)


def test_a_precision_that_returns_another_module_is_an_error_in_use(tmp_path: Path) -> None:
    class Own(Precision):
        def convert_module(self, module: Any) -> Any:
            return nn.Sequential(module)

    with pytest.raises(TypeError, match="`return value` must be the module that it got"):
        fitted(tmp_path, plugins=[Own()])


# environments, files and kinds of devices


class OwnFiles(TorchCheckpointIO):
    def __init__(self) -> None:
        self.calls: list[Any] = []

    def save_checkpoint(self, checkpoint: Any, path: Any, storage_options: Any = None) -> None:
        self.calls.append(("save", Path(path).name))
        super().save_checkpoint({**checkpoint, "own": True}, path, storage_options)

    def load_checkpoint(self, path: Any, map_location: Any = None) -> Any:  # as written for earlier releases
        self.calls.append(("load", Path(path).name))
        return torch.load(path, map_location=map_location, weights_only=False)

    def teardown(self) -> None:
        self.calls.append("teardown")


@pytest.mark.parametrize("wrap", [lambda io: io, AsyncCheckpointIO])
def test_a_plugin_writes_and_reads_checkpoints(wrap: Any, tmp_path: Path) -> None:
    io = OwnFiles()
    trainer, _ = fitted(tmp_path, plugins=[wrap(io)])
    trainer.save_checkpoint(tmp_path / "x.ckpt")
    again = trainer_of(tmp_path, strategy=DDPStrategy(checkpoint_io=wrap(io)), max_epochs=2)
    resumed = Line()
    again.fit(resumed, LOADER, ckpt_path=tmp_path / "x.ckpt")
    assert [one for one in io.calls if one != "teardown"] == [("save", "x.ckpt"), ("load", "x.ckpt")]
    assert again.current_run is not None and again.current_run.checkpoint["own"]
    _, whole = fitted(tmp_path, max_epochs=2)
    assert torch.equal(resumed.layer.weight, whole.layer.weight)


def test_a_plugin_removes_what_it_has_written(tmp_path: Path) -> None:
    class Elsewhere(CheckpointIO):
        def __init__(self) -> None:
            self.store: dict[str, Any] = {}

        def save_checkpoint(self, checkpoint: Any, path: Any, storage_options: Any = None) -> None:
            self.store[Path(path).name] = checkpoint["epoch"]

        def load_checkpoint(self, path: Any, storage_options: Any = None) -> Any:
            raise AssertionError

        def remove_checkpoint(self, path: Any) -> None:
            del self.store[Path(path).name]

    io = Elsewhere()
    newest = ModelCheckpoint(dirpath=tmp_path / "own")
    fitted(tmp_path, plugins=[io], callbacks=newest, max_epochs=3, enable_checkpointing=True)
    assert io.store == {"epoch=2-step=6.ckpt": 2}
    assert not list(tmp_path.rglob("*.ckpt"))


def test_an_environment_is_not_asked_where_one_process_uses_one_device(tmp_path: Path) -> None:
    class Cluster(SLURMEnvironment):
        def global_rank(self) -> int:
            raise AssertionError

    class OfLauncher(SLURMEnvironment):
        pass

    assert trainer_of(tmp_path, plugins=[Cluster(auto_requeue=False)]).world_size == 1
    assert trainer_of(tmp_path, plugins=[OfLauncher(auto_requeue=False)], strategy="ddp").world_size == 1


def test_an_environment_as_releases_1_2_to_1_5_had_them(monkeypatch: pytest.MonkeyPatch) -> None:
    class Own(ClusterEnvironment):
        def creates_children(self) -> bool:
            return False

        def master_address(self) -> str:
            return "host"

        def master_port(self) -> int:
            return 7

        def world_size(self) -> int:
            return 1

        global_rank = local_rank = node_rank = lambda self: 0

        def set_world_size(self, size: int) -> None: ...

        def set_global_rank(self, rank: int) -> None: ...

    own = Own()
    assert (own.creates_processes_externally, own.main_address, own.main_port) == (False, "host", 7)
    assert not own.detect()


def test_an_asynchronous_plugin_raises_the_error_of_writing(tmp_path: Path) -> None:
    class Broken(TorchCheckpointIO):
        def save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
            raise OSError("full")

    trainer, _ = fitted(tmp_path, plugins=[AsyncCheckpointIO(Broken())])
    with pytest.raises(OSError, match="full"):
        trainer.save_checkpoint(tmp_path / "x.ckpt")


def test_plugins_need_a_strategy_that_has_a_place_for_them(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="`plugins` must be left out with SingleDeviceStrategy"):
        trainer_of(tmp_path, strategy=strategies.SingleDeviceStrategy("cpu"), plugins=[OwnFiles()])
    assert issubclass(OwnFiles, CheckpointIO)


def test_a_kind_of_device_may_be_an_object(tmp_path: Path) -> None:
    class Own(CPUAccelerator):
        calls: list[Any] = []  # noqa: RUF012

        @staticmethod
        def name() -> str:
            return "own"

        def setup_device(self, device: Any) -> None:
            self.calls.append(device)

        def setup(self, trainer: Any) -> None:
            self.calls.append(type(trainer))

        def teardown(self) -> None:
            self.calls.append("teardown")

    own = Own()
    trainer, _ = fitted(tmp_path, accelerator=own)
    assert own.calls == [torch.device("cpu"), Trainer, "teardown"]
    assert trainer.accelerator is own and isinstance(trainer.strategy, SingleDeviceStrategy)
    assert isinstance(trainer_of(tmp_path, accelerator=CPUAccelerator()).accelerator, Accelerator)
    several = trainer_of(tmp_path, strategy=DDPStrategy(accelerator=Own()))
    assert isinstance(several.accelerator, Own) and issubclass(DDPStrategy, ParallelStrategy)
