"""The loops run on anybody's strategy: the examples' adapters give what camshaft's own strategy gives.

In one process everything is compared to the bit: hooks, outputs, weights, checkpoints. Two processes of a library's
own, each with its half of every batch, end with the weights of one process that has whole batches.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from adapters import worker
from adapters.parts import (
    Manual,
    Net,
    Outcome,
    ShapedByHooks,
    adam_with_scheduler,
    assert_identical,
    batches,
    fit,
    lbfgs,
    run,
    sgd_with_scheduler,
    shuffled,
)
from adapters.strategies import BUILDERS, EXAMPLES, on_accelerate, on_fabric
from launching import run_ranks
from lightning.fabric.plugins.precision import MixedPrecision
from lightning.fabric.strategies import ModelParallelStrategy

from camshaft.hooks_core import CATALOGUE
from camshaft.hooks_core.protocols import Strategy
from camshaft.hooks_core.trace import Event
from camshaft.loops import PredictLoop, TestLoop, ValidationLoop
from camshaft.strategies import SingleDeviceStrategy, read_checkpoint

LIBRARIES = sorted(BUILDERS)
ON_CPU = {"CUDA_VISIBLE_DEVICES": ""}

FITS: dict[str, tuple[Callable[[], Net], dict[str, Any]]] = {
    "accumulation and clipping by norm": (
        lambda: Net(adam_with_scheduler),
        {"accumulate_grad_batches": 2, "gradient_clip_val": 0.1},
    ),
    "clipping by value": (
        lambda: Net(sgd_with_scheduler),
        {"gradient_clip_val": 0.01, "gradient_clip_algorithm": "value"},
    ),
    "an optimizer that evaluates the loss itself": (lambda: Net(lbfgs), {"gradient_clip_val": 1.0}),
    "overridden updates and transfers": (lambda: ShapedByHooks(sgd_with_scheduler), {"accumulate_grad_batches": 2}),
    "manual optimization": (lambda: Manual(lambda parameters: torch.optim.Adam(parameters, lr=0.05)), {}),
}


def fit_on(strategy: Strategy, make: Callable[[], Net], **arguments: Any) -> Outcome:
    torch.manual_seed(0)
    return fit(make(), strategy, shuffled(1), shuffled(2), **arguments)


def without_loader_idx(event: Event) -> Event:
    """The event without the index of a single loader, which goes to methods that require it alone."""
    return attrs.evolve(event, arguments=event.arguments.removesuffix(", dataloader_idx=0"))


def assert_same(outcome: Outcome, expected: Outcome) -> None:
    """The same hooks, the same outputs and the same weights, to the bit."""
    assert list(map(without_loader_idx, outcome.calls)) == list(map(without_loader_idx, expected.calls))
    assert outcome.outputs or outcome.result
    assert_identical(outcome.outputs, expected.outputs)
    assert_identical(outcome.result, expected.result)
    assert_identical(outcome.weights, expected.weights)


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("name", FITS)
def test_a_fit_is_the_same_as_on_the_own_strategy(name: str, library: str) -> None:
    make, arguments = FITS[name]
    expected = fit_on(SingleDeviceStrategy("cpu"), make, **arguments)
    assert_same(fit_on(BUILDERS[library](), make, **arguments), expected)
    torch.manual_seed(0)
    begin = make().state_dict()
    assert all(not torch.equal(expected.weights[key], begin[key]) for key in ("layers.0.weight", "layers.4.bias"))


@pytest.mark.parametrize("algorithm", ["norm", "value"])
def test_what_clips_here_makes_a_difference(algorithm: str) -> None:
    make, _ = FITS["clipping by value"]
    clipped = {"gradient_clip_val": 0.01, "gradient_clip_algorithm": algorithm}
    weights = [fit_on(SingleDeviceStrategy("cpu"), make, **arguments).weights for arguments in ({}, clipped)]
    assert not torch.equal(weights[0]["layers.0.weight"], weights[1]["layers.0.weight"])


@pytest.mark.parametrize("library", LIBRARIES)
def test_every_verb_on_one_module_is_the_same_as_on_the_own_strategy(library: str) -> None:
    def run_all(strategy: Strategy) -> list[Outcome]:
        torch.manual_seed(0)
        module = Net(sgd_with_scheduler)
        outcomes = [fit(module, strategy, shuffled(1), shuffled(2))]
        for stage, loop in (("validate", ValidationLoop()), ("test", TestLoop()), ("predict", PredictLoop())):
            outcomes.append(run(stage, loop, module, strategy, {stage: batches(3)}))
        return [*outcomes, fit(module, strategy, shuffled(1), shuffled(2))]

    expected, outcomes = run_all(SingleDeviceStrategy("cpu")), run_all(BUILDERS[library]())
    for outcome, wanted in zip(outcomes, expected, strict=True):
        assert_same(outcome, wanted)


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_fit_resumed_at_an_epochs_end_is_the_same_as_one_that_was_not_stopped(library: str, tmp_path: Path) -> None:
    make, arguments = FITS["accumulation and clipping by norm"]
    path = tmp_path / "new folder" / "first.ckpt"
    whole = fit_on(BUILDERS[library](), make, path=str(path), **arguments)
    assert [file.name for file in path.parent.iterdir()] == ["first.ckpt"]
    checkpoint = BUILDERS[library]().load_checkpoint(str(path))
    torch.manual_seed(99)
    resumed = fit(make(), BUILDERS[library](), shuffled(1), shuffled(2), checkpoint=checkpoint, **arguments)
    assert_identical(resumed.weights, whole.weights)
    assert not torch.equal(checkpoint["state_dict"]["layers.0.weight"], whole.weights["layers.0.weight"])


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_checkpoint_is_that_of_the_own_strategy(library: str, tmp_path: Path) -> None:
    make, arguments = FITS["accumulation and clipping by norm"]
    path, own_path = str(tmp_path / "adapter.ckpt"), str(tmp_path / "own.ckpt")
    strategy = BUILDERS[library]()
    fit_on(strategy, make, path=path, **arguments)
    fit_on(SingleDeviceStrategy("cpu"), make, path=own_path, **arguments)
    checkpoint, expected, back = read_checkpoint(path), read_checkpoint(own_path), strategy.load_checkpoint(own_path)
    for saved in (checkpoint, expected, back):
        assert saved["loops"]["fit"].pop("elapsed_seconds") > 0  # the one thing that differs from run to run
    plain = make().state_dict()
    assert list(checkpoint["state_dict"]) == list(plain)
    assert checkpoint["state_dict"]._metadata == plain._metadata  # type: ignore[attr-defined]
    assert_identical(checkpoint, expected)
    assert_identical(back, expected)  # what the own strategy wrote


def test_mixed_precision_computes_steps_in_bf16_alike_and_keeps_the_weights_in_32_bits() -> None:
    def make() -> Net:
        return Net(sgd_with_scheduler)

    outcomes, dtypes = [], []
    for library in LIBRARIES:
        torch.manual_seed(0)
        module = make()
        outcomes.append(fit(module, BUILDERS[library](bf16=True), shuffled(1), shuffled(2), gradient_clip_val=0.1))
        dtypes.append(module.dtypes)
    assert dtypes == [{torch.bfloat16}] * 3
    for outcome in outcomes:
        assert {value.dtype for value in outcome.weights.values()} == {torch.float32, torch.int64}
        torch.testing.assert_close(outcome.weights, outcomes[0].weights, rtol=1e-2, atol=1e-3)
    in_32_bits = fit_on(SingleDeviceStrategy("cpu"), make, gradient_clip_val=0.1)
    assert not torch.equal(in_32_bits.weights["layers.0.weight"], outcomes[0].weights["layers.0.weight"])


@pytest.mark.parametrize("library", LIBRARIES)
def test_nothing_of_the_library_stays_on_the_module(library: str) -> None:
    module = Net(sgd_with_scheduler)
    begin = set(vars(module))
    fit(module, BUILDERS[library](bf16=True), batches(1), batches(2))
    assert "forward" not in vars(module)
    assert {name for name in set(vars(module)) - begin if name not in CATALOGUE} == set()  # hooks: the trace's own
    assert not any(sub._forward_hooks or sub._forward_pre_hooks for sub in module.modules())


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: on_accelerate(mixed_precision="fp16"), r"'no' or 'bf16' precision.*'fp16'"),
        (lambda: on_accelerate(gradient_accumulation_steps=2), r"without accumulation of its own.*'no', 2\)"),
        (lambda: on_fabric(plugins=[MixedPrecision("16-mixed", "cpu")]), r"32-true or bf16-mixed, but got .*16-mixed"),
        (lambda: on_fabric(strategy=ModelParallelStrategy(print)), r"one device or with DDP.*'ModelParallelStrategy'"),
    ],
)
def test_what_an_adapter_does_not_do_is_an_error_at_its_construction(build: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()


@pytest.mark.parametrize("library", ["accelerate", "fabric"])
def test_two_processes_on_halves_train_as_one_on_whole_batches(library: str, tmp_path: Path) -> None:
    run_ranks(Path(worker.__file__), 2, args=[library, tmp_path], env=ON_CPU).succeeded()
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in (0, 1))
    calls = first.pop("calls")
    on_every = [call for call in calls if "prepare_data" not in call]
    assert second.pop("calls") == on_every != calls, "data is prepared by the first process alone"
    assert_identical(first, second)
    assert_identical(first["resumed"], first["whole"])

    torch.manual_seed(0)
    whole = worker.train(SingleDeviceStrategy("cpu"), slice(None), path=str(tmp_path / "whole.ckpt"))
    torch.testing.assert_close(first["whole"], whole.weights)
    assert calls == [str(event) for event in whole.calls]
    torch.manual_seed(0)
    half = worker.train(SingleDeviceStrategy("cpu"), slice(0, None, 2))  # as if gradients were not reduced
    with pytest.raises(AssertionError, match="Tensor-likes are not close"):
        torch.testing.assert_close(half.weights, whole.weights)


def test_two_processes_print_the_metrics_of_both_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lines = run_ranks(EXAMPLES / "strategy_torch.py", 2, env=ON_CPU).succeeded().output.splitlines()
    assert [line.split()[1] for line in lines if "loss_step" in line] == ["19:", "39:", "59:", "79:", "99:"]
    accuracies = [float(line.split()[3].rstrip(",")) for line in lines if ": accuracy" in line]
    assert len(accuracies) == 5 and accuracies[-1] > 0.9
    num_right = [359 * accuracy for accuracy in accuracies]
    assert num_right == pytest.approx([round(number) for number in num_right], abs=0.02), "of all 359 images"
    assert lines[-1].endswith(f"accuracy {accuracies[-1]:.1%}")


THREADS_AT_THE_END = """
import atexit, os, runpy, sys

def tell():
    if sys.platform != "linux":
        return
    threads = os.listdir("/proc/self/task")
    names = [open(f"/proc/self/task/{thread}/comm").read().strip() for thread in threads]
    os.write(1, f"threads: {names}{os.linesep}".encode())  # at once, or lines of two processes mix

atexit.register(tell)  # runs after what is registered later
sys.path.insert(0, os.path.dirname(sys.argv[1]))
runpy.run_path(sys.argv[1], run_name="__main__")
"""


@pytest.mark.parametrize("library", ["accelerate", "fabric"])
def test_an_example_runs_in_two_processes_says_so_once_and_leaves_no_thread_of_torch(
    library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that still holds a tensor when the interpreter is taken down would abort the process."""
    monkeypatch.chdir(tmp_path)
    example = EXAMPLES / f"strategy_{library}.py"
    output = run_ranks(THREADS_AT_THE_END, 2, launcher="torchrun", args=[example], env=ON_CPU).succeeded().output
    assert output.count("test accuracy after 345 updates") == 1  # 23 batches of 32 in each half, 15 epochs
    if sys.platform == "linux":  # threads of torch are told apart by /proc alone
        threads = [line for line in output.splitlines() if line.startswith("threads:")]
        assert len(threads) == 2 and not any("gloo" in line for line in threads)


@pytest.mark.parametrize("library", LIBRARIES)
def test_an_adapter_is_at_most_a_page(library: str) -> None:
    source = (EXAMPLES / f"strategy_{library}.py").read_text()
    assert len(source.splitlines()) <= (150 if library == "torch" else 120)  # with a module that logs
    classes = [
        node for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name.endswith("Strategy")
    ]
    lines = [line for node in classes for line in (ast.get_source_segment(source, node) or "").splitlines()]
    assert len([line for line in lines if line.strip()]) <= 80


@pytest.mark.gpu(kind="cuda")
@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("bf16", [False, True])
def test_a_gpu_computes_what_the_own_strategy_computes_on_it(bf16: bool, library: str) -> None:
    def make() -> Net:
        return Net(sgd_with_scheduler)

    outcome = fit_on(BUILDERS[library](bf16=bf16, device="cuda"), make, gradient_clip_val=0.1)
    expected = fit_on(SingleDeviceStrategy("cuda:0"), make, gradient_clip_val=0.1)
    assert outcome.calls == expected.calls
    assert {value.device.type for value in outcome.weights.values()} == {"cuda"}
    tolerance = {"rtol": 0.05, "atol": 0.02} if bf16 else {"rtol": 1e-5, "atol": 1e-6}
    torch.testing.assert_close(outcome.weights, expected.weights, **tolerance)
