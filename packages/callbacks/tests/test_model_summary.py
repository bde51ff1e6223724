from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from recording_trainer import RecordingTrainer
from torch import Tensor, nn

from camshaft.callbacks.arguments import InvalidArgumentError
from camshaft.callbacks.progress.example_forward import describe_shape
from camshaft.callbacks.progress.model_summary import ModelSummary, RichModelSummary, format_count, summarize


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))
        self.features = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))
        self.head = nn.Linear(8, 5)
        self.features[0].requires_grad_(False)
        self.features[1].eval()
        self.example_input_array: Any = torch.zeros(2, 3, 6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x * self.scale[:, None, None]).mean((2, 3)))


class TestTable:
    def test_is_aligned_text_with_totals(self) -> None:
        assert str(summarize(Net())).splitlines() == [
            "Name      Type          Parameters  Trainable  Mode    FLOPs  Input shape   Output shape",
            "--------  ------------  ----------  ---------  -----  ------  ------------  ------------",
            "features  Sequential           240  partly     train  13.8 K  [2, 3, 6, 6]  [2, 8, 4, 4]",
            "head      Linear                45  yes        train     160  [2, 8]        [2, 5]",
            "scale     (parameters)           3  yes        train",
            "",
            "    64  trainable parameters",
            "   224  non-trainable parameters",
            "   288  parameters in total",
            "14.0 K  FLOPs in a forward of the example",
            "     3  modules in train mode",
            "     1  modules in eval mode",
        ]

    def test_lists_parts_as_deep_as_it_is_told(self) -> None:
        names = {depth: [row.name for row in summarize(Net(), depth).rows] for depth in (0, 1, 2, -1)}
        every = ["features", "features.0", "features.1", "head", "scale"]
        assert names == {0: [], 1: ["features", "head", "scale"], 2: every, -1: every}
        assert "trainable parameters" in str(summarize(Net(), 0))

    def test_says_what_is_trained_and_in_which_mode(self) -> None:
        rows = {row.name: (row.trainable, row.mode) for row in summarize(Net(), 2).rows}
        assert rows["features"] == ("partly", "train")
        assert rows["features.0"] == ("no", "train") and rows["features.1"] == ("yes", "eval")

    def test_counts_shared_parameters_once_and_sizes_by_their_dtype(self) -> None:
        module = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False), nn.BatchNorm1d(4)).half()
        module[1].weight = module[0].weight
        summary = summarize(module)
        assert (summary.total_parameters, summary.size_bytes) == (16 + 8, 2 * 24)
        assert [row.parameters for row in summary.rows] == [16, 16, 8]

    @pytest.mark.parametrize(
        ("count", "text"), [(0, "0"), (999, "999"), (1234, "1.23 K"), (99_950, "100 K"), (45_600_000_000, "45.6 G")]
    )
    def test_shortens_counts(self, count: int, text: str) -> None:
        assert format_count(count) == text


def test_a_tiny_model_has_one_total() -> None:
    assert str(summarize(nn.Linear(4, 1))).splitlines()[2:] == [
        "weight, bias  (parameters)           5  yes        train",
        "",
        "5  trainable parameters",
    ]
    assert [what for _, what in summarize(nn.Linear(400, 100)).totals()] == ["trainable parameters", "MB of parameters"]


class TestLazyAndSharded:
    def test_lazy_parameters_stay_so_and_are_named(self) -> None:
        module = nn.Sequential(nn.LazyLinear(3), nn.Linear(3, 2))
        summary = summarize(module, 1, torch.zeros(1, 4))
        assert (
            summary.num_lazy_parameters == 2 and summary.total_parameters == 8 and module[0].has_uninitialized_params()
        )
        assert "8 + ?  trainable parameters" in str(summary)
        assert "not run, since it would give lazy parameters their shape" in str(summary)

    def test_the_meta_device_is_named(self) -> None:
        summary = summarize(nn.Linear(2, 3, device="meta"), 1, torch.zeros(1, 2))
        assert summary.total_parameters == 9 and "parameters are on the meta device" in str(summary)

    @pytest.fixture
    def two_processes(self) -> Iterator[None]:
        from torch.testing._internal.distributed.fake_pg import FakeStore

        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
        yield
        dist.destroy_process_group()

    def test_counts_shards_whole_and_here_without_computing_with_them(self, two_processes: None) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import Shard, distribute_tensor

        class Unwilling(nn.Module):
            def forward(self, x: Tensor) -> Tensor:
                raise AssertionError("called")

        module = Unwilling()
        module.layer = nn.Linear(4, 6, bias=False)
        mesh = init_device_mesh("cpu", (2,))
        module.layer.weight = nn.Parameter(
            distribute_tensor(module.layer.weight.detach(), mesh, [Shard(0)], src_data_rank=None)
        )
        summary = summarize(module, 1, torch.zeros(1, 4))
        (row,) = summary.rows
        assert (row.parameters, row.local_parameters) == (24, 12)
        assert (summary.size_bytes, summary.local_size_bytes) == (96, 48)
        assert "12  parameters on this process" in str(summary)
        assert "parameters are sharded, so that all processes would have to compute together" in str(summary)


class Touching(nn.Module):
    """Changes whatever a forward can."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3, momentum=1.0)
        self.layer = nn.Linear(3, 3)
        self.register_buffer("num_calls", torch.zeros(()))
        self.register_buffer("latest", torch.zeros(3))
        self.count = 0
        self.seen: list[int] = []
        self.kept = torch.zeros(3)
        self.states = [torch.zeros(3)]

    def train(self, mode: bool = True) -> Touching:
        if not mode:
            raise AssertionError("a part may do more here")
        return super().train(mode)

    def forward(self, x: Tensor) -> Tensor:
        assert not self.training and not torch.is_grad_enabled() and not torch.is_autocast_enabled("cpu")
        self.num_calls += 1
        self.latest = x[0].clone()
        self.count += 1
        self.seen.append(1)
        self.cache = x
        self.kept.add_(1)
        self.states[0].add_(1)
        x += torch.rand(3) + random.random()
        return self.layer(self.norm(x))


class TestExample:
    def test_leaves_no_trace(self) -> None:
        module = Touching()
        module.layer.eval()
        example = torch.ones(4, 3)
        state = {name: value.clone() for name, value in module.state_dict().items()}
        modes = [part.training for part in module.modules()]
        attributes, random_state, python_state = set(vars(module)), torch.get_rng_state(), random.getstate()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            summary = summarize(module, 1, example)
        assert summary.rows[0].in_shape == "[4, 3]" and summary.total_flops == 2 * 4 * 3 * 3
        assert all(torch.equal(value, state[name]) for name, value in module.state_dict().items())
        assert [part.training for part in module.modules()] == modes
        assert set(vars(module)) == attributes and (module.count, module.seen) == (0, [])
        assert not module.kept.any() and not module.states[0].any() and torch.equal(example, torch.ones(4, 3))
        assert torch.equal(torch.get_rng_state(), random_state) and random.getstate() == python_state
        assert all(parameter.grad is None for parameter in module.parameters())
        assert not any(part._forward_hooks or part._forward_pre_hooks for part in module.modules())
        assert torch.backends.mha.get_fastpath_enabled()

    def test_an_error_is_a_warning_and_leaves_no_trace_either(self) -> None:
        module = Touching()
        with pytest.warns(UserWarning, match=r"Touching is without shapes and FLOPs.*raised RuntimeError"):
            summary = summarize(module, 1, torch.zeros(4, 7))
        assert summary.total_flops is None and "raised" in summary.notes[0] and "Input shape" not in str(summary)
        assert module.num_calls == 0 and module.training and not module.norm._forward_hooks

    @pytest.mark.parametrize(
        ("example", "in_shape"),
        [
            (torch.zeros(2, 3), "[2, 3]"),
            ((torch.zeros(2, 3), 2), "([2, 3], 2)"),
            ([torch.zeros(2, 3)], "[2, 3]"),
            ({"x": torch.zeros(2, 3), "times": 3}, "{x: [2, 3], times: 3}"),
        ],
    )
    def test_is_a_tensor_positions_or_keywords(self, example: Any, in_shape: str) -> None:
        class Inner(nn.Linear):
            def forward(self, x: Tensor, times: int = 1) -> dict[str, Tensor]:
                return {"y": super().forward(x) * times}

        class Outer(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.inner = Inner(3, 1)

            def forward(self, *args: Any, **kwargs: Any) -> Any:
                return self.inner(*args, **kwargs)

        (row,) = summarize(Outer(), 1, example).rows
        assert (row.in_shape, row.out_shape) == (in_shape, "{y: [2, 1]}")

    def test_takes_the_module_s_dtype(self) -> None:
        assert summarize(nn.Sequential(nn.Linear(3, 2)).double(), 1, torch.zeros(1, 3)).total_flops == 12

    def test_counts_flops_of_what_is_otherwise_fused(self) -> None:
        lstm = summarize(nn.Sequential(nn.LSTM(16, 16)), 1, torch.zeros(2, 1, 16))
        assert lstm.total_flops == 2 * 2 * (16 * 64 + 16 * 64)
        encoder = nn.Sequential(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True))
        products = 3 * 16 * 16 + 16 * 16 + 2 * 16 * 32  # in, out, feed-forward
        attention = 5 * 16 + 5 * 16
        assert summarize(encoder, 1, torch.zeros(2, 5, 16)).total_flops == 2 * 2 * 5 * (products + attention)

    def test_a_part_called_twice_counts_twice_and_shows_its_first_shapes(self) -> None:
        class Twice(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layer = nn.Linear(3, 3)
                self.unused = nn.Linear(3, 3)

            def forward(self, x: Tensor) -> Tensor:
                return self.layer(self.layer(x)[:1])

        layer, unused = summarize(Twice(), 1, torch.zeros(2, 3)).rows
        assert (layer.flops, layer.out_shape) == (2 * 9 * 2 + 2 * 9, "[2, 3]")
        assert (unused.flops, unused.in_shape) == (None, "")

    def test_describes_what_is_nested_and_cuts_what_is_long(self) -> None:
        assert describe_shape((torch.zeros(2), [None, "text"])) == "([2], (None, str))"
        assert describe_shape([torch.zeros(100, 100)] * 20).endswith("...")


class TestCallback:
    def test_prints_once_when_fit_begins_on_the_first_process(self, capsys: pytest.CaptureFixture[str]) -> None:
        module = Net()
        for is_global_zero in (False, True):
            callback = ModelSummary(max_depth=2)
            callback.on_fit_start(RecordingTrainer(".", is_global_zero=is_global_zero), module)
            assert capsys.readouterr().out == (f"{callback.summary}\n" if is_global_zero else "")
        assert callback.summary == summarize(module, 2)

    def test_prints_a_table_of_rich_on_a_terminal(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("camshaft.callbacks.progress.model_summary.current_output", lambda: "terminal")
        monkeypatch.setenv("COLUMNS", "120")
        ModelSummary().on_fit_start(RecordingTrainer("."), Net())
        output = capsys.readouterr().out
        assert "[2, 3, 6, 6] │ [2, 8, 4, 4]" in output and "parameters in total" in output

    def test_rich_prints_with_rich_anywhere(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("COLUMNS", "120")
        callback = RichModelSummary(2, header_style="bold red")
        callback.on_fit_start(RecordingTrainer("."), Net())
        assert "│" in capsys.readouterr().out.replace("┃", "│") and callback.max_depth == 2
        monkeypatch.setitem(sys.modules, "rich", None)
        with pytest.raises(ModuleNotFoundError, match="RichModelSummary needs `rich`"):
            RichModelSummary()

    def test_an_override_of_print_gets_the_summary(self) -> None:
        class Kept(ModelSummary):
            def print(self, summary: Any) -> None:
                self.kept = summary

        callback = Kept()
        callback.on_fit_start(RecordingTrainer("."), Net())
        assert callback.kept is callback.summary is not None

    def test_depth_0_does_nothing(self, capsys: pytest.CaptureFixture[str]) -> None:
        callback = ModelSummary(0)
        callback.on_fit_start(RecordingTrainer("."), Net())
        assert capsys.readouterr().out == "" and callback.summary is None

    @pytest.mark.parametrize("depth", [-2, 1.5, True])
    def test_refuses_other_depths(self, depth: Any) -> None:
        with pytest.raises(InvalidArgumentError, match="`max_depth` must be an int, -1 or more"):
            ModelSummary(depth)

    def test_refuses_what_is_no_module(self) -> None:
        with pytest.raises(TypeError, match=r"`module` must be a torch.nn.Module, but got 3 \(int\) in summarize"):
            summarize(3)  # type: ignore[arg-type]
