"""A preflight tells what a fit needs on many devices, in one process without them."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import torch.distributed as dist
import torchmetrics
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset

from camshaft.callbacks import EarlyStopping, ModelCheckpoint
from camshaft.hooks_core import Callback, StrategyDefaults
from camshaft.strategies import DDPStrategy, ShardedStrategy, SingleDeviceStrategy
from camshaft.trainer import Trainer, TrainingModule
from camshaft.trainer.preflight import Report, simulated_world

WIDTH, NUM_LAYERS = 256, 3


class Net(TrainingModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(NUM_LAYERS)])
        self.register_buffer("scale", torch.ones(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x).relu()
        return x * self.scale[0]

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss = self(batch[0]).sum()
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val", self(batch[0]).mean())

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters())


NUM_BYTES = 4 * NUM_LAYERS * WIDTH * WIDTH


def loader(num_samples: int = 256, batch_size: int = 4) -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.ones(num_samples, WIDTH)), batch_size=batch_size, shuffle=True)


def trainer(**arguments: Any) -> Trainer:
    return Trainer(**{"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, **arguments})


def preflight(module: Any = None, *, of: Trainer | None = None, **arguments: Any) -> Report:
    module = Net() if module is None else module
    data = arguments.pop("data", None) or loader()
    return (of or trainer()).preflight(module, data, loader(), verbose=False, **arguments)


def sent(report: Report, phase: str = "update") -> dict[tuple[str, str], tuple[int, int]]:
    return {
        (kind.operation, kind.dimension): (count, num_bytes)
        for of_phase, kind, count, num_bytes in report.collectives
        if of_phase == phase
    }


@pytest.mark.parametrize("precision", ["32-true", "16-mixed", "bf16-true"])
def test_tensors_that_live_are_counted_exactly(precision: str) -> None:
    report = preflight(of=trainer(precision=precision, accelerator="cpu"))
    assert report.not_run == [] and report.collectives == []
    size = NUM_BYTES // 2 if precision == "bf16-true" else NUM_BYTES
    between = report.memory_between_steps
    assert (between["parameters"], between["gradients"]) == (size, size)
    assert size * 2 <= between["optimizer"] <= size * 2 + 64  # with the counts of steps
    assert between["buffers"] == (16 if precision == "bf16-true" else 32)
    assert report.memory["total"] > sum(report.memory[kind] for kind in ("parameters", "gradients", "optimizer"))
    assert report.num_parameters == NUM_BYTES // 4 and report.fits


def test_module_trainer_and_process_stay_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    module, of = Net(), Trainer(max_epochs=1, callbacks=[ModelCheckpoint()], default_root_dir=tmp_path)
    weights = {name: value.clone() for name, value in module.state_dict().items()}
    before = set(threading.enumerate())
    report = preflight(module, of=of, world_size=16)
    assert report.world["strategy"] == "DDPStrategy" and report.not_run == []  # as under a launcher
    assert not any(isinstance(value, FakeTensor) for value in module.state_dict().values())
    assert all(torch.equal(value, weights[name]) for name, value in module.state_dict().items())
    assert isinstance(of.strategy, SingleDeviceStrategy) and of.current_run is None and of.global_step == 0
    assert not dist.is_initialized() and set(threading.enumerate()) == before and list(tmp_path.iterdir()) == []
    of.fit(module, loader(16))
    assert of.global_step == 4


@pytest.mark.parametrize(
    ("strategy", "dimension"), [(DDPStrategy, "all ranks"), (ShardedStrategy, "data_parallel_shards")]
)
def test_logical_ranks_share_the_data_and_are_summed_in_chunks(strategy: Any, dimension: str) -> None:
    report = preflight(of=trainer(strategy=strategy(accelerator="cpu", logical_ranks=8)), world_size=4)
    assert report.not_run == [] and report.data["train"]["samples per batch of all ranks"] == 8 * 4
    _, num_bytes = sent(report)["all_to_all", dimension]
    assert NUM_BYTES <= num_bytes < 2.1 * NUM_BYTES


@pytest.mark.parametrize("accumulated", [1, 4])
def test_replicas_reduce_their_gradients_once_an_update(accumulated: int) -> None:
    of = trainer(strategy=DDPStrategy(accelerator="cpu"), accumulate_grad_batches=accumulated)
    report = preflight(of=of, world_size=16)
    assert report.not_run == []
    assert sent(report)["all_reduce", "all ranks"] == (1, NUM_BYTES)
    assert sent(report, "validation batch") == {}
    assert report.memory_between_steps["activations"] >= NUM_BYTES  # the buckets


def test_shards_are_gathered_for_forward_and_backward_and_their_gradients_scattered() -> None:
    of = trainer(strategy=ShardedStrategy(accelerator="cpu"), gradient_clip_val=1.0)
    report = preflight(of=of, world_size=64)
    assert report.not_run == []
    (num_gathers, gathered), (num_scatters, scattered) = (
        sent(report)[operation, "data_parallel_shards"] for operation in ("all_gather", "reduce_scatter")
    )
    assert gathered == pytest.approx(2 * NUM_BYTES, rel=0.01) and scattered == pytest.approx(NUM_BYTES, rel=0.01)
    assert (num_gathers, num_scatters) == (2 * NUM_LAYERS, NUM_LAYERS)
    assert sent(report)["all_reduce", "data_parallel_shards"] == (1, 4)  # of the norm
    assert report.memory_between_steps["parameters"] == NUM_BYTES // 64
    assert report.num_files == 66 and report.checkpoint["of a rank"] == pytest.approx(3 * NUM_BYTES / 64, rel=0.01)


def test_collectives_are_told_by_dimension_of_the_mesh() -> None:
    with simulated_world(64):
        of = trainer(strategy=ShardedStrategy(data_parallel_replicas=8, accelerator="cpu"))
        report = preflight(of=of, world_size=64)
    assert report.not_run == [] and report.world["num_nodes"] == 8
    assert sent(report)["reduce_scatter", "data_parallel_shards"][1] == pytest.approx(NUM_BYTES, rel=0.01)
    assert sent(report)["all_reduce", "data_parallel_replicas"][1] == pytest.approx(NUM_BYTES / 8, rel=0.01)
    assert report.communication_seconds > 0 and report.mfu_bound is not None and report.mfu_bound < 1


class Measuring(Net):
    def __init__(self) -> None:
        super().__init__()
        self.mean = torchmetrics.MeanSquaredError()  # a module whose state is no parameter and no buffer
        self.layers.append(nn.BatchNorm1d(WIDTH))

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss = super().training_step(batch, batch_idx)
        self.mean(loss, torch.zeros_like(loss))
        self.log("mean", self.mean, prog_bar=True)
        return loss


class Manual(Net):
    automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:  # type: ignore[override]
        for optimizer in self.optimizers():
            loss = self(batch[0]).sum()
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()

    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9) for _ in range(2)]


@pytest.mark.parametrize("kind", [Measuring, Manual])
@pytest.mark.parametrize(
    "strategy",
    [
        lambda: DDPStrategy(accelerator="cpu", gradient_as_bucket_view=True, static_graph=False),
        lambda: ShardedStrategy(accelerator="cpu", activation_checkpointing=nn.Linear, accumulation="keep"),
    ],
)
def test_metrics_manual_optimization_views_and_checkpointing_run(kind: Any, strategy: Any) -> None:
    report = preflight(kind(), of=trainer(strategy=strategy()), world_size=8)
    assert (report.not_run, report.reads) == ([], [])
    reduced = sum(
        num_bytes
        for (operation, _), (_, num_bytes) in sent(report).items()
        if operation in ("all_reduce", "reduce_scatter")
    )
    assert reduced == pytest.approx(NUM_BYTES * (2 if kind is Manual else 1), rel=0.01)


def test_a_preflight_has_the_callbacks_of_the_trainer_once() -> None:
    class Counting(Callback):
        starts: ClassVar[list[int]] = []

        def on_train_start(self, trainer: Any, module: Any) -> None:
            self.starts.append(trainer.world_size)

    arguments: dict[str, Any] = {"deterministic": True, "profiler": "simple", "accelerator": "cpu"}
    of = Trainer(callbacks=[Counting(), EarlyStopping("val")], logger=False, max_epochs=1, **arguments)
    report = preflight(of=of, world_size=4)
    assert report.not_run == [] and Counting.starts == [4]


def test_a_module_on_another_device_is_taken_to_the_simulated_one() -> None:
    assert preflight(Net().to("meta")).memory_between_steps["parameters"] == NUM_BYTES


def test_flops_are_those_of_the_products() -> None:
    report = preflight(of=trainer(accumulate_grad_batches=2))
    products = 3 * NUM_LAYERS - 1  # backward needs no gradient of the input
    assert report.flops == 2 * products * 2 * 4 * WIDTH * WIDTH


class Reading(Net):
    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss = super().training_step(batch, batch_idx)
        self.last = loss.item()  # a read
        self.kept = loss.detach().cpu().numpy()  # two
        if loss > 1e9:
            raise AssertionError("made up values are small")
        return loss


def test_a_value_that_the_host_reads_is_told_with_hook_and_line() -> None:
    report = preflight(Reading())
    assert report.not_run == []
    reads = [(phase, read.hook, read.code, count) for phase, read, count in report.reads]
    assert reads == [
        ("update", "training_step", "self.last = loss.item()  # a read", 1),
        *2 * [("update", "training_step", "self.kept = loss.detach().cpu().numpy()  # two", 1)],
        ("update", "training_step", "if loss > 1e9:", 1),
    ]
    assert "in `training_step`" in str(report) and "`self.log` takes tensors" in str(report)


def test_a_step_that_only_logs_reads_nothing() -> None:
    assert preflight().reads == []


class Selecting(Net):
    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val", batch[0][batch[0] > 0].mean())  # a shape that depends on values


class Branching(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layers[0](x)
        if x.sum() > 0:
            x = x + 1
        return self.layers[1](x)


@pytest.mark.parametrize("arguments", [{}, {"precision": "bf16-mixed"}, {"precision": "bf16-true"}])
def test_graph_breaks_of_what_is_compiled_are_told_with_their_line(arguments: dict[str, Any]) -> None:
    report = preflight(Branching(), of=trainer(compile=True, **arguments), world_size=4)
    (part,) = report.graphs
    (broken,) = part.breaks
    assert (part.name, part.num_graphs, broken.code) == ("", 2, "if x.sum() > 0:")
    assert "  the model: 2 graph(s), 1 break(s)\n" in str(report)
    assert f"{Path(broken.file).name}:{broken.line}: {broken.code}" in str(report)
    assert preflight(Branching()).graphs == []


def test_graphs_of_sharded_blocks_are_those_of_whole_ones() -> None:
    strategy = ShardedStrategy(accelerator="cpu", compile=True)
    report = preflight(of=trainer(strategy=strategy), world_size=4)
    assert [(part.name, part.num_graphs) for part in report.graphs] == [(f"layers.{idx}", 1) for idx in range(3)]
    assert json.loads(report.as_json())["graphs"][0] == {"name": "layers.0", "num_graphs": 1, "breaks": []}


def test_the_rest_is_told_where_something_cannot_run_on_fake_tensors() -> None:
    report = preflight(Selecting())
    (reason,) = report.not_run
    assert "DynamicOutputShapeException" in reason and "torch.where" in reason and "batch[0] > 0" in reason
    assert report.flops and report.memory_between_steps["parameters"] == NUM_BYTES
    assert "not run on fake tensors" in str(report)


class Huge(TrainingModule):
    def configure_model(self) -> None:
        self.net = nn.Linear(2**17, 2**17)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return self.net(batch[0].new_zeros(4, 2**17)).sum()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


class Configured(Net):
    """Builds and shards its layers in the hook."""

    def __init__(self) -> None:
        TrainingModule.__init__(self)

    def configure_sharded_model(self) -> None:
        self.table = nn.Embedding(WIDTH, 2)
        self.layers = nn.ModuleList([nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(NUM_LAYERS)])
        self.register_buffer("scale", torch.ones(8))
        fully_shard(self.layers[0], mesh=self.device_mesh["data_parallel_shards"])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + self.table(x[:, :1].long()).sum()


def test_a_sharded_model_may_be_built_in_its_hook() -> None:
    report = preflight(Configured(), of=trainer(strategy=ShardedStrategy(accelerator="cpu")), world_size=8)
    assert report.not_run == []
    assert report.memory_between_steps["parameters"] == (NUM_BYTES + 4 * 2 * WIDTH) // 8


@pytest.mark.parametrize("is_built_by_function", [False, True])
def test_a_model_that_is_too_large_for_this_machine_takes_no_memory(is_built_by_function: bool) -> None:
    def build() -> Huge:
        module = Huge()
        module.configure_model()
        module.configure_model = lambda: None  # type: ignore[method-assign]
        return module

    report = trainer().preflight(build if is_built_by_function else Huge(), loader(), verbose=False)
    assert report.memory["parameters"] == 4 * (2**34 + 2**17) and report.fits is False  # 64 GiB, and as much twice
    assert any("of the device's memory" in warning for warning in report.warnings)
    assert "does not fit" in str(report)


@pytest.mark.parametrize(
    ("num_samples", "warning"),
    [
        (100, r"train: 100 samples are fewer than the 128 ranks"),
        (300, r"train: a rank has 3 samples an epoch, fewer than its batch of 4"),
        (128 * 5, r"train: the last batch of each rank has 1 of 4 samples"),
        (128 * 4 - 1, r"1 are repeated in each epoch"),
    ],
)
def test_data_that_is_too_small_for_the_ranks_is_told(num_samples: int, warning: str) -> None:
    report = preflight(world_size=128, data=loader(num_samples))
    assert any(warning in one for one in report.warnings)
    assert "validate: 64 batches for 128 ranks: 64 of them have none." in report.warnings
    assert report.data["validate"]["batches, at most, per rank"] == 1


def test_the_report_is_printed_and_written_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "report.json"
    report = trainer().preflight(Reading(), loader(), loader(), world_size=8, json=path)
    assert capsys.readouterr().out == f"{report}\n"
    told = json.loads(path.read_text())
    assert told["memory"]["total"] == report.memory["total"] and told["world"]["world_size"] == 8
    assert {one["operation"] for one in told["collectives"]} == {"broadcast", "all_reduce"} and told["reads"][0][
        "hook"
    ] == "training_step"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"device": "h1000"}, r"`device` must be one of a100, .* but got 'h1000' \(str\) in preflight"),
        ({"world_size": 0}, r"`world_size` must be a positive int, but got 0 \(int\) in preflight"),
        ({"devices_per_node": True}, r"`devices_per_node` must be a positive int, but got True \(bool\) in preflight"),
    ],
)
def test_numbers_out_of_range_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        preflight(**arguments)


def test_a_strategy_of_others_and_a_joined_group_are_refused() -> None:
    class Own(StrategyDefaults):
        device = torch.device("cpu")

    with pytest.raises(TypeError, match=r"`strategy` must be one of camshaft.strategies"):
        preflight(of=trainer(strategy=Own()))
    with simulated_world(4, 8), pytest.raises(RuntimeError, match=r"`process group` must be none, or a fake one"):
        preflight(world_size=8)
