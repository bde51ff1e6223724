"""Measure windows of training steps as one CUDA graph each, beside the same steps one by one.

    python benchmarks/cuda_graph_windows.py [--json FILE]
    python benchmarks/cuda_graph_windows.py --dry    # the same code on the CPU, without graphs: finds typing errors

A prototype of what RATIONALE.md describes under "Loops"; nothing of it is used at runtime. A window is `WINDOW` batches
with their updates, between which no hook runs. Each way begins with the same weights, batches and random numbers and
must end with the same weights.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

WINDOW = 10
NUM_WARMUP = 3
"""Windows before the timed ones, which a capture needs: libraries choose their algorithms and allocate."""
NUM_TIMED = 50
NUM_DISTINCT = 4
Size = tuple[int, ...]
"""Samples of a batch, for "transformer" the length of a sequence, and the width of the model."""
SIZES: dict[str, Size] = {"mlp": (64, 256), "transformer": (16, 64, 256)}
DRY_SIZES: dict[str, Size] = {"mlp": (2, 16), "transformer": (2, 4, 16)}
Window = list[tuple[Tensor, Tensor]]
"""Batches, each with its inputs and its targets."""


class Residual(nn.Module):
    """A residual block of two linear layers with dropout."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        """Return the input plus its update."""
        result: Tensor = x + self.dropout(self.down(nn.functional.gelu(self.up(self.norm(x)))))
        return result


def make_model(kind: str, width: int) -> nn.Module:
    """Return a model of many small kernels: "mlp" on vectors, "transformer" on sequences."""
    torch.manual_seed(1)
    if kind == "mlp":
        return nn.Sequential(*(Residual(width) for _ in range(6)), nn.Linear(width, 1))
    layers = [nn.TransformerEncoderLayer(width, 4, 4 * width, 0.1, batch_first=True) for _ in range(4)]
    return nn.Sequential(*layers, nn.Linear(width, 1))


def make_windows(size: Size, *, is_pinned: bool) -> list[Window]:
    """Return windows of batches on the host."""
    generator = torch.Generator().manual_seed(2)

    def batch() -> tuple[Tensor, Tensor]:
        x = torch.randn(size, generator=generator)
        y = x.mean(-1, keepdim=True).tanh()
        return (x.pin_memory(), y.pin_memory()) if is_pinned else (x, y)

    return [[batch() for _ in range(WINDOW)] for _ in range(NUM_DISTINCT)]


class Training:
    """A model with its optimizer, whose state a graph can hold, and a learning rate that changes between windows.

    Args:
        kind: The model.
        size: The size of its batches.
        device: Its device.
        compile_mode: The mode of `torch.compile` for the forward; None leaves it as it is.
    """

    def __init__(self, kind: str, size: Size, device: torch.device, compile_mode: str | None = None) -> None:
        self._device = device
        self.model = make_model(kind, size[-1]).to(device)
        is_graph_safe = device.type == "cuda"
        rate = torch.tensor(1e-3, device=device)  # one that a graph reads anew in each replay
        self._optimizer = torch.optim.AdamW(self.model.parameters(), lr=rate, capturable=is_graph_safe)
        self._scheduler = LambdaLR(self._optimizer, lambda window: 0.99**window)
        self._forward: Callable[[Tensor], Tensor] = self.model
        if compile_mode is not None:
            options: dict[str, Any] = {"mode": compile_mode} if is_graph_safe else {"backend": "eager"}
            self._forward = torch.compile(self.model, **options)
        self.losses = torch.zeros(WINDOW, device=device)
        torch.manual_seed(3)  # of the dropout

    def step(self, idx: int, x: Tensor, y: Tensor) -> None:
        """Make the update of a batch on the device; nothing waits for the device."""
        self._optimizer.zero_grad()
        loss = nn.functional.mse_loss(self._forward(x), y)
        loss.backward()
        self._optimizer.step()
        self.losses[idx].copy_(loss.detach())

    def one_by_one(self, window: Window) -> None:
        """Make the steps of a window one by one."""
        for idx, (x, y) in enumerate(window):
            if self._device.type == "cuda" and self._forward is not self.model:
                torch.compiler.cudagraph_mark_step_begin()
            self.step(idx, x.to(self._device, non_blocking=True), y.to(self._device, non_blocking=True))

    def end_window(self) -> None:
        """Change the learning rate, on the host."""
        self._scheduler.step()


class GraphedTraining(Training):
    """The same steps, of which a window is captured once and replayed with the batches of another."""

    def __init__(self, kind: str, size: Size, device: torch.device) -> None:
        super().__init__(kind, size, device)
        [window, *_] = make_windows(size, is_pinned=False)
        self._inputs = [(x.to(device), y.to(device)) for x, y in window]
        self._replay: Callable[[], None] | None = None
        self._num_windows = 0

    def one_by_one(self, window: Window) -> None:
        """Copy the batches to where the graph reads them, and replay it; the windows of the warm-up run as they are."""
        for (x, y), (own_x, own_y) in zip(window, self._inputs, strict=True):
            own_x.copy_(x, non_blocking=True)
            own_y.copy_(y, non_blocking=True)
        self._num_windows += 1
        if self._num_windows < NUM_WARMUP:
            self._on_side_stream()
            return
        if self._replay is None:
            self._replay = self._captured()
        self._replay()

    def _all_steps(self) -> None:
        for idx, (x, y) in enumerate(self._inputs):
            self.step(idx, x, y)

    def _on_side_stream(self) -> None:
        if self._device.type == "cpu":
            self._all_steps()
            return
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self._all_steps()
        torch.cuda.current_stream().wait_stream(side)

    def _captured(self) -> Callable[[], None]:
        if self._device.type == "cpu":
            return self._all_steps
        self._optimizer.zero_grad()  # gradients of the graph lie in its own memory
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):  # records, and computes nothing
            self._all_steps()
        return graph.replay


WAYS: dict[str, Callable[[str, Size, torch.device], Training]] = {
    "one by one": Training,
    "one graph": GraphedTraining,
    "compiled": partial(Training, compile_mode="default"),
    "compiled with graphs": partial(Training, compile_mode="reduce-overhead"),
}
SAME_BITS = ("one by one", "one graph")
"""Ways that run the same kernels; compiled ones fuse them, and draw other random numbers."""


def run(training: Training, windows: list[Window], num_timed: int, device: torch.device) -> dict[str, float]:
    """Train; return microseconds a step until the host had enqueued all ("host"), and until it was done ("all")."""

    def waits() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize()

    def forever() -> Iterator[Window]:
        while True:
            yield from windows

    given = forever()
    for _ in range(NUM_WARMUP):
        training.one_by_one(next(given))
        training.end_window()
    waits()
    begin = time.perf_counter()
    for _ in range(num_timed):
        training.one_by_one(next(given))
        training.end_window()
    enqueued = time.perf_counter()
    waits()
    scale = 1e6 / (num_timed * WINDOW)
    return {"host": (enqueued - begin) * scale, "all": (time.perf_counter() - begin) * scale}


def measure(device: torch.device) -> dict[str, Any]:
    """Return the figures of each way, by model, and how far the weights of the graph are from those one by one."""
    results: dict[str, Any] = {}
    is_dry = device.type == "cpu"
    for kind, size in (DRY_SIZES if is_dry else SIZES).items():
        windows = make_windows(size, is_pinned=not is_dry)
        rows: dict[str, Any] = {}
        weights: dict[str, list[Tensor]] = {}
        for name, make in WAYS.items():
            training = make(kind, size, device)
            rows[name] = run(training, windows, 1 if is_dry else NUM_TIMED, device)
            weights[name] = [parameter.detach().clone() for parameter in training.model.parameters()]
        one, other = (weights[name] for name in SAME_BITS)
        difference = max(float((a - b).abs().max()) for a, b in zip(one, other, strict=True))
        results[kind] = {"microseconds": rows, "largest_difference": difference}
    return results


def table(results: dict[str, Any]) -> str:
    """Return the figures as text."""
    lines = [f"{'model':<12} {'way':<22} {'host':>9} {'all':>9}  microseconds a step"]
    for kind, result in results.items():
        for way, figures in result["microseconds"].items():
            lines.append(f"{kind:<12} {way:<22} {figures['host']:>9.1f} {figures['all']:>9.1f}")
        lines.append(f"{kind}: the graph's weights differ by {result['largest_difference']:.3g} at most")
    return "\n".join(lines)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dry", action="store_true", help="run on the CPU, without graphs and figures of meaning")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write every value to FILE")
    options = parser.parse_args()
    if not options.dry and not torch.cuda.is_available():
        parser.error("A CUDA device is needed; --dry runs the same code on the CPU.")
    results = measure(torch.device("cpu" if options.dry else "cuda"))
    print(table(results))
    if options.json is not None:
        options.json.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
