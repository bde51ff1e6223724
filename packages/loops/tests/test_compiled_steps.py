"""`log` and `log_dict` end a graph of `torch.compile` once each, and are never traced themselves."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from camshaft.loops.metrics import MetricLogging, not_compiled


class Logging(MetricLogging, nn.Linear):
    def training_step(self, batch: Tensor) -> Tensor:
        loss = self(batch).mean()
        self.log("loss", loss, on_epoch=True)
        self.log_dict({"twice": loss * 2, "more": loss + 1})
        return loss * 3


@pytest.fixture
def counters() -> Iterator[Any]:
    from torch._dynamo.utils import counters as of_dynamo

    torch.compiler.reset()
    of_dynamo.clear()
    yield of_dynamo
    torch.compiler.reset()


def test_a_compiled_step_is_the_graphs_around_its_logging(counters: Any) -> None:
    module = Logging(3, 1)
    compiled = torch.compile(module.training_step, backend="eager")
    for scale in range(1, 12):
        batch = torch.full((2, 3), float(scale))
        expected = float(module(batch).mean().detach())
        assert float(compiled(batch)) == pytest.approx(3 * expected)
        logged = {name: float(value) for name, value in module.logged_metrics.items()}
        assert logged == pytest.approx({"loss": expected, "twice": 2 * expected, "more": 1 + expected})
    assert sum(counters["graph_break"].values()) == 2
    assert counters["stats"]["unique_graphs"] == 3
    assert dict(counters["frames"]) == {"total": 3, "ok": 3}  # the step and what follows each call: nothing of the log


def test_logging_without_compilation_imports_no_dynamo_and_is_not_wrapped() -> None:
    script = (
        "import sys, torch\nfrom camshaft.loops.metrics import MetricLogging\n"
        "class Module(MetricLogging, torch.nn.Linear): ...\n"
        "Module(1, 1).log('x', 1.0)\n"
        "assert MetricLogging.log.__code__.co_name == 'log' and not hasattr(MetricLogging.log, '__wrapped__')\n"
        "assert 'torch._dynamo' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_functions_are_disabled_publicly_where_torch_has_no_such_marks(
    monkeypatch: pytest.MonkeyPatch, counters: Any
) -> None:
    monkeypatch.delattr("torch._C._dynamo.eval_frame.set_code_exec_strategy")
    seen = []

    @not_compiled
    def note(value: Tensor) -> None:
        seen.append(float(value.sum()))

    def step(values: Tensor) -> Tensor:
        doubled = values * 2
        note(doubled)
        return doubled + 1

    result = torch.compile(step, backend="eager")(torch.ones(2))
    assert result.tolist() == [3.0, 3.0] and seen == [4.0]
    assert sum(counters["graph_break"].values()) == 1
