"""Show and measure on a machine with CUDA devices what cannot be shown without one.

    python benchmarks/gpu.py --json figures.json             # all parts; some minutes
    python benchmarks/gpu.py --parts syncs steps
    python benchmarks/gpu.py --dry                           # the same code on the CPU: finds typing errors

It runs with torch 2.11 and what that machine has: camshaft is taken from this checkout if it is not installed, and a
library that is missing leaves its row out. Each part is a process of its own, and fails alone.

    tests     the tests marked `gpu`, of all packages
    syncs     steps during which a wait for the device is an error (`torch.cuda.set_sync_debug_mode`)
    contexts  which devices a process on the last one holds memory of, with saves in the background
    ranks     the same for each rank of DDP on all devices
    steps     microseconds a step, beside the loop by hand, compiled or not, and Lightning
    memory    the peak of a fit, beside what `Trainer.preflight` says, where there is one
    graphs    cuda_graph_windows.py
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import cuda_graph_windows as graphs

ROOT = Path(__file__).resolve().parents[1]
LIMIT_SECONDS = 900
NUM_WARMUP, NUM_TIMED = 30, 300
SIZES: dict[str, graphs.Size] = {**graphs.SIZES, "large batches": (8192, 1024)}
DRY_SIZES: dict[str, graphs.Size] = {**graphs.DRY_SIZES, "large batches": (8, 16)}
Batch = tuple[Tensor, Tensor]


class Work:
    """A model to train, with its batches.

    Args:
        name: A key of `SIZES`.
        device: Where it is trained; on the CPU everything is small.
    """

    def __init__(self, name: str, device: torch.device) -> None:
        self.is_dry = device.type == "cpu"
        self.device, self.size = device, (DRY_SIZES if self.is_dry else SIZES)[name]
        self.num_warmup, self.num_timed = (2, 4) if self.is_dry else (NUM_WARMUP, NUM_TIMED)
        [self.batches, *_] = graphs.make_windows(self.size, is_pinned=not self.is_dry)

    def model(self, *, is_compiled: bool = False) -> nn.Module:
        """Return a new model, on the host."""
        model = graphs.make_model("mlp" if len(self.size) == 2 else "transformer", self.size[-1])
        if is_compiled:
            model.compile(backend="eager" if self.is_dry else "inductor")
        return model

    @staticmethod
    def loss(model: nn.Module, batch: Batch) -> Tensor:
        """Return the loss of a batch."""
        return nn.functional.mse_loss(model(batch[0]), batch[1])

    @staticmethod
    def optimizer(model: nn.Module) -> torch.optim.Optimizer:
        """Return a new optimizer."""
        return torch.optim.AdamW(model.parameters(), lr=1e-3)

    def wait(self) -> None:
        """Wait for the device."""
        if not self.is_dry:
            torch.cuda.synchronize(self.device)


class TimedBatches:
    """A loader that notes the time of `num_timed` steps, with the work of the device, after those of the warm-up."""

    def __init__(self, work: Work) -> None:
        self._work, self._num_before, self.seconds = work, work.num_warmup, float("nan")

    def __len__(self) -> int:
        return self._num_before + self._work.num_timed + 1

    def __iter__(self) -> Iterator[Batch]:
        begin = 0.0
        for idx in range(len(self)):
            if idx in (self._num_before, len(self) - 1):
                self._work.wait()
                begin, self.seconds = time.perf_counter(), time.perf_counter() - begin
            yield self._work.batches[idx % len(self._work.batches)]


class StrictBatches(TimedBatches):
    """A loader from whose warm-up on a wait for the device is an error, until the last step, after which it is none."""

    def __iter__(self) -> Iterator[Batch]:
        work = self._work
        for idx in range(len(self)):
            if not work.is_dry:
                is_strict = work.num_warmup <= idx < len(self) - 1
                torch.cuda.set_sync_debug_mode("error" if is_strict else "default")
            yield work.batches[idx % len(work.batches)]


def make_module(base: type[Any], work: Work, *, is_compiled: bool = False, logs: bool = False) -> Any:
    """Return a module of camshaft's or Lightning's base class."""

    class Module(base):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = work.model(is_compiled=is_compiled)

        def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
            loss = work.loss(self.net, batch)
            if logs:
                self.log("loss", loss)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return work.optimizer(self)

    return Module()


def make_trainer(work: Work, folder: str, strategy: Any = None, **options: Any) -> Any:
    """Return a trainer of one epoch that shows and writes nothing, unless `options` say so."""
    from camshaft.strategies import SingleDeviceStrategy
    from camshaft.trainer import Trainer

    strategy = SingleDeviceStrategy(work.device) if strategy is None else strategy
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    arguments = {**quiet, "enable_model_summary": False, "max_epochs": 1, **options}
    return Trainer(strategy=strategy, default_root_dir=folder, **arguments)


def fit(work: Work, loader: Any, folder: str, **options: Any) -> None:
    """Train with camshaft.

    Args:
        work: The work.
        loader: The batches.
        folder: Where files go.
        **options: `module` and `strategy` hold arguments of `make_module` and `SingleDeviceStrategy`, all others are
            those of `make_trainer`.
    """
    from camshaft.strategies import SingleDeviceStrategy
    from camshaft.trainer import TrainingModule

    of_trainer = {name: value for name, value in options.items() if name not in ("module", "strategy")}
    strategy = SingleDeviceStrategy(work.device, **options.get("strategy", {}))
    module = make_module(TrainingModule, work, **options.get("module", {}))
    make_trainer(work, folder, strategy, **of_trainer).fit(module, loader)


def tests(device: torch.device, folder: str) -> Any:
    """Run the tests marked `gpu`; a dry run only collects them."""
    places = [str(path) for path in [*sorted(ROOT.glob("packages/*/tests")), ROOT / "integration_tests"]]
    options = ["--collect-only"] if device.type == "cpu" else ["-rs"]
    if not _is_installed():
        options += ["-p", "camshaft.hooks_core.pytest_plugin"]
    results, has_failed = {}, False
    for place in places:
        command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", *options, place]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        name = str(Path(place).relative_to(ROOT))
        results[name] = done.stdout.strip().rpartition("\n")[2] or done.stderr[-2000:]
        if done.returncode not in (0, 5):  # 5: there are none
            results[name], has_failed = done.stdout[-6000:] + done.stderr[-2000:], True
    if has_failed:
        raise RuntimeError("\n\n".join(f"{name}: {text}" for name, text in results.items()))
    return results


SYNC_CASES: dict[str, dict[str, Any]] = {
    "bare": {"barebones": True},
    "logged": {"module": {"logs": True}, "logger": True, "log_every_n_steps": 1000},
    "clipped": {"gradient_clip_val": 1.0},
    "accumulated": {"accumulate_grad_batches": 4},
    "bf16-mixed": {"strategy": {"precision": "bf16-mixed"}},
    "copy stream": {"strategy": {"copy_stream": True}},
    "compiled": {"module": {"is_compiled": True}},
}


def syncs(device: torch.device, folder: str) -> Any:
    """Fit in several ways while a wait for the device is an error, from the end of the warm-up to the last step."""
    results = {}
    for name, options in SYNC_CASES.items():
        work = Work("mlp", device)
        try:
            fit(work, StrictBatches(work), folder, **options)
            results[name] = "no wait"
        except RuntimeError as error:
            frames = traceback.extract_tb(error.__traceback__)
            own = [frame for frame in frames if "/torch/" not in frame.filename]
            results[name] = f"{error} at {own[-1].filename}:{own[-1].lineno}"
        finally:
            if device.type == "cuda":
                torch.cuda.set_sync_debug_mode("default")
    found = {name: text for name, text in results.items() if text != "no wait"}
    if found:
        raise RuntimeError(json.dumps(results, indent=2))
    return results


def contexts_here() -> list[int]:
    """Return the devices on which this process has a context."""
    has_context: Callable[[int], bool] = torch._C._cuda_hasPrimaryContext  # type: ignore[attr-defined]
    return [idx for idx in range(torch.cuda.device_count()) if has_context(idx)]


def contexts(device: torch.device, folder: str) -> Any:
    """Fit on the last device, with saves in the background, and list the devices with a context of this process."""
    last = device if device.type == "cpu" else torch.device("cuda", torch.cuda.device_count() - 1)
    work = Work("mlp", last)
    saves = {"enable_checkpointing": True, "strategy": {"save_asynchronously": True}}
    fit(work, TimedBatches(work), folder, max_epochs=2, **saves)
    if device.type == "cpu":
        return "none"
    found, expected = contexts_here(), [last.index]
    query = ["nvidia-smi", "--query-compute-apps=pid,gpu_uuid,used_memory", "--format=csv,noheader"]
    by_nvidia = subprocess.run(query, capture_output=True, text=True, check=False).stdout.splitlines()
    if found != expected:
        raise RuntimeError(f"a process on {last} has contexts on {found}; nvidia-smi: {by_nvidia}")
    return {"contexts": found, "nvidia-smi": by_nvidia, "pid": os.getpid()}


def ranks(device: torch.device, folder: str) -> Any:
    """Fit by DDP on all devices, and gather the devices with a context of each rank."""
    if device.type == "cuda" and torch.cuda.device_count() < 2:
        return f"left out: it needs 2 devices, and this machine has {torch.cuda.device_count()}"
    from camshaft.strategies import DDPStrategy
    from camshaft.trainer import TrainingModule

    num_devices = 2 if device.type == "cpu" else -1
    strategy = DDPStrategy(accelerator=device.type, devices=num_devices, save_asynchronously=True)
    work = Work("mlp", device)
    trainer = make_trainer(work, folder, strategy, enable_checkpointing=True)
    trainer.fit(make_module(TrainingModule, work), TimedBatches(work))
    found = strategy.all_gather([] if device.type == "cpu" else contexts_here())
    if device.type == "cuda" and found != [[idx] for idx in range(strategy.world_size)]:
        raise RuntimeError(f"ranks have contexts on {found}")
    return found


def by_hand(work: Work, loader: TimedBatches, folder: str, *, is_compiled: bool) -> None:
    """Train as one does without a framework."""
    model = work.model(is_compiled=is_compiled).to(work.device)
    optimizer = work.optimizer(model)
    for x, y in loader:
        batch = x.to(work.device, non_blocking=True), y.to(work.device, non_blocking=True)
        loss = work.loss(model, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def by_camshaft(work: Work, loader: TimedBatches, folder: str, *, is_compiled: bool, copies: bool = False) -> None:
    """Train with camshaft's trainer."""
    module, strategy = {"is_compiled": is_compiled}, {"copy_stream": copies}
    fit(work, loader, folder, barebones=True, module=module, strategy=strategy)


def by_lightning(work: Work, loader: TimedBatches, folder: str, *, is_compiled: bool) -> None:
    """Train with Lightning's trainer."""
    import lightning.pytorch as pl

    module = make_module(pl.LightningModule, work, is_compiled=is_compiled)
    accelerator, devices = ("cpu", 1) if work.is_dry else ("gpu", [work.device.index or 0])
    arguments: dict[str, Any] = {"accelerator": accelerator, "devices": devices, "default_root_dir": folder}
    pl.Trainer(max_epochs=1, barebones=True, **arguments).fit(module, loader)


CONTENDERS: dict[str, Callable[[Work, TimedBatches, str], None]] = {
    "by hand": partial(by_hand, is_compiled=False),
    "camshaft": partial(by_camshaft, is_compiled=False),
    "camshaft, copy stream": partial(by_camshaft, is_compiled=False, copies=True),
    "lightning": partial(by_lightning, is_compiled=False),
    "by hand, compiled": partial(by_hand, is_compiled=True),
    "camshaft, compiled": partial(by_camshaft, is_compiled=True),
    "camshaft, compiled, copy stream": partial(by_camshaft, is_compiled=True, copies=True),
    "lightning, compiled": partial(by_lightning, is_compiled=True),
}


def steps(device: torch.device, folder: str) -> Any:
    """Return microseconds a step by work and contender: the fastest of three turns."""
    results: dict[str, dict[str, Any]] = {}
    num_turns = 1 if device.type == "cpu" else 3
    for name in SIZES:
        row = results[name] = {}
        for _ in range(num_turns):
            for contender, train in CONTENDERS.items():
                work = Work(name, device)
                loader = TimedBatches(work)
                try:
                    train(work, loader, folder)
                except ImportError as error:
                    row[contender] = f"left out: {error}"
                    continue
                microseconds = round(1e6 * loader.seconds / work.num_timed, 1)
                row[contender] = min(microseconds, row.get(contender, microseconds))
    return results


def memory(device: torch.device, folder: str) -> Any:
    """Return the peak of allocated memory of a fit, in bytes, and what `preflight` says of the same fit."""
    from camshaft.trainer import TrainingModule

    results: dict[str, Any] = {}
    for name in SIZES:
        work = Work(name, device)
        if device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(device)
        fit(work, TimedBatches(work), folder)
        peak = 0 if device.type == "cpu" else torch.cuda.max_memory_allocated(device)
        preflight = getattr(make_trainer(work, folder), "preflight", None)
        try:
            said = str(preflight and preflight(make_module(TrainingModule, work), TimedBatches(work), world_size=1))
        except Exception as error:  # the figures beside it count, too
            said = f"{type(error).__name__}: {error}"
        results[name] = {"peak_bytes": peak, "preflight": said}
    return results


def cuda_graphs(device: torch.device, folder: str) -> Any:
    """Measure windows of steps as one CUDA graph."""
    return graphs.measure(device)


PARTS: dict[str, Callable[[torch.device, str], Any]] = {
    "tests": tests,
    "syncs": syncs,
    "contexts": contexts,
    "ranks": ranks,
    "steps": steps,
    "memory": memory,
    "graphs": cuda_graphs,
}


def run_part(name: str, *, is_dry: bool, target: Path) -> None:
    """Run a part in this process, and write its result to a file, beside which it may write others."""
    result = PARTS[name](torch.device("cpu" if is_dry else "cuda"), str(target.parent))
    target.write_text(json.dumps(result), encoding="utf-8")


def _is_installed() -> bool:
    return importlib.util.find_spec("camshaft") is not None and not os.environ.get("CAMSHAFT_FROM_CHECKOUT")


def start_part(name: str, *, is_dry: bool) -> tuple[bool, Any]:
    """Run a part in a process of its own. Return whether it succeeded, and its result or its output."""
    environment = dict(os.environ)
    if not _is_installed():
        sources = [str(path) for path in sorted(ROOT.glob("packages/*/src"))]
        environment["PYTHONPATH"] = os.pathsep.join([*sources, environment.get("PYTHONPATH", "")])
        environment["CAMSHAFT_FROM_CHECKOUT"] = "1"
    with tempfile.TemporaryDirectory(prefix="camshaft-gpu-") as folder:
        target = Path(folder, "result.json")
        command = [sys.executable, __file__, "--part", name, "--result", str(target), *(["--dry"] if is_dry else [])]
        streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        try:
            done = subprocess.run(command, env=environment, timeout=LIMIT_SECONDS, check=False, **streams)
        except subprocess.TimeoutExpired as error:
            return False, f"not done after {LIMIT_SECONDS} s:\n{error.output}"
        if done.returncode or not target.exists():
            return False, done.stdout[-12_000:]
        return True, json.loads(target.read_text(encoding="utf-8"))


def circumstances(*, is_dry: bool) -> dict[str, Any]:
    """Return what the figures were measured with."""
    devices = [] if is_dry else [torch.cuda.get_device_name(idx) for idx in range(torch.cuda.device_count())]
    return {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "devices": devices,
        "python": sys.version.split()[0],
    }


def main() -> int:
    """Run the parts and print what came out; return 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS), help="what to run")
    parser.add_argument("--dry", action="store_true", help="run on the CPU, with small models")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write everything to FILE")
    parser.add_argument("--part", choices=list(PARTS), help=argparse.SUPPRESS)
    parser.add_argument("--result", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not options.dry and not torch.cuda.is_available():
        print("No CUDA device is here, so nothing ran. --dry runs the same code on the CPU.")
        return 0
    if options.part is not None:
        run_part(options.part, is_dry=options.dry, target=options.result)
        return 0
    report: dict[str, Any] = {"conditions": circumstances(is_dry=options.dry), "parts": {}}
    print(json.dumps(report["conditions"]))
    has_failed = False
    for name in options.parts:
        begin = time.perf_counter()
        is_well, result = start_part(name, is_dry=options.dry)
        has_failed |= not is_well
        report["parts"][name] = {"succeeded": is_well, "result": result}
        print(f"\n{name}: {'succeeded' if is_well else 'FAILED'} in {time.perf_counter() - begin:.0f} s")
        print(result if isinstance(result, str) else json.dumps(result, indent=2), flush=True)
        if options.json is not None:
            options.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return int(has_failed)


if __name__ == "__main__":
    sys.exit(main())
