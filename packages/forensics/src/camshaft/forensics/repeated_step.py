"""Callback that repeats training steps to find a processor or a memory that computes wrong numbers."""

from __future__ import annotations

import copy
import json
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from camshaft.callbacks.arguments import check_number
from camshaft.callbacks.finders.trials import TrialSteps, any_rank, restored
from camshaft.forensics.ledger.digests import TorchGenerators, digest_of, slow_generators
from camshaft.hooks_core import Callback
from camshaft.hooks_core.protocols import StepTrials
from camshaft.hooks_core.support.devices import name_of_device
from camshaft.hooks_core.support.messages import must_be, warn_user

if TYPE_CHECKING:
    from camshaft.hooks_core.protocols import TrainerProtocol


_NUM_AT_START = 3
"""Repetitions of the first step, by which operations that are not deterministic are known."""
_REDUCED = "reduced gradient of "
_NOT_DETERMINISTIC = re.compile(r"^(\S+) does not have a deterministic implementation")


class CorruptionError(RuntimeError):
    """A step that was repeated from the same state gave other numbers.

    Attributes:
        epoch: Zero-based epoch.
        batch_idx: Zero-based index of the batch in it.
        differences: What differed, by rank, as "loss", "gradient of layer.weight", "buffer norm.running_mean", ...
        devices: Device of each of these ranks.
    """

    def __init__(
        self, epoch: int, batch_idx: int, differences: Mapping[int, Sequence[str]], devices: Mapping[int, str]
    ) -> None:
        where = "; ".join(f"rank {rank} ({devices[rank]}): {_listed(what)}" for rank, what in differences.items())
        super().__init__(
            f"Two repetitions of the step must be equal, but differ in epoch {epoch}, batch {batch_idx}: {where}."
        )
        self.add_note(
            "The same step from the same state gave other bits, which the first step of this fit did not. Test the "
            "hardware of these ranks before you go on from the last checkpoint: no checkpoint holds this step."
        )
        self.epoch, self.batch_idx = epoch, batch_idx
        self.differences = {rank: list(what) for rank, what in differences.items()}
        self.devices = dict(devices)

    def __reduce__(self) -> tuple[Any, ...]:
        """Return the constructor's arguments, so that the error can be sent to other processes."""
        return type(self), (self.epoch, self.batch_idx, self.differences, self.devices)


class RepeatedStep(Callback):
    """Repeats a step every so often, and raises if forward and backward do not give the same bits twice.

    Before the step, its forward and backward pass run twice from the same state, and are undone: loss, gradients (of
    this process, and reduced over processes), buffers and random numbers are compared by their digests. A difference is
    silent data corruption: a processor, a memory or a link that gives wrong numbers now and then. It raises on every
    rank before the update, so no checkpoint holds what came of it.

    Operations that are not deterministic differ without a fault. So the first step of a fit is repeated three times:
    what differs there is left out from then on, with a warning that names it, and the operations if torch knows them.

    A repetition takes the time of two steps, and memory for a copy of the buffers and gradients on the CPU. With
    parameters that are sharded a difference names the rank that holds the shard.

    Args:
        every_n_steps: Optimizer updates from one repetition to the next.

    Attributes:
        num_repeated: Number of steps that were repeated.
        left_out: What is not compared, as it differs without a fault; by name, the same on all ranks.

    Raises:
        InvalidArgumentError: If `every_n_steps` is no positive int; at the start of training, if the module optimizes
            by hand, or not with exactly one optimizer.
        CorruptionError: If two repetitions differ.
    """

    only_observes = True

    def __init__(self, every_n_steps: int = 1000) -> None:
        check_number(type(self).__name__, "Pass 1 to repeat every step.", least=1, every_n_steps=every_n_steps)
        self.every_n_steps = every_n_steps
        self.num_repeated = 0
        self.left_out: list[str] = []
        self._steps: TrialSteps | None = None
        self._next = 0
        self._is_first = True

    def on_train_start(self, trainer: TrainerProtocol, module: Any) -> None:
        """Check that a step can be repeated."""
        if not isinstance(trainer, StepTrials):
            action = "Leave the callback out, or define `trial_step` as in camshaft.hooks_core.protocols."
            raise TypeError(must_be("trainer", "one whose steps can be undone", trainer, "RepeatedStep", action))
        self._steps = TrialSteps(trainer, module, type(self).__name__)
        self._next, self._is_first, self.left_out = trainer.global_step, True, []

    def on_train_batch_start(self, trainer: TrainerProtocol, module: Any, batch: Any, batch_idx: int) -> None:
        """Repeat the step if it is due. Collective then. Raises `CorruptionError`."""
        if trainer.global_step < self._next:
            return
        self._next = (trainer.global_step // self.every_n_steps + 1) * self.every_n_steps
        is_first, self._is_first = self._is_first, False
        num_times = _NUM_AT_START if is_first else 2
        first, *others = [self._repeat(trainer, module, batch, batch_idx) for _ in range(num_times)]
        self.num_repeated += 1
        differing = [name for name in first if any(one.get(name) != first[name] for one in others)]
        strategy = trainer.strategy
        if is_first:
            if any_rank(strategy, bool(differing)):
                self._leave_out(trainer, module, batch, batch_idx, differing)
            return
        of_ranks = strategy.all_gather([name for name in differing if name not in self.left_out])
        if not any(of_ranks):
            return
        own = {rank: _local(names) for rank, names in enumerate(of_ranks) if _local(names)}
        faulty = own or {rank: names for rank, names in enumerate(of_ranks) if names}
        devices = dict(enumerate(strategy.all_gather(_name_of(strategy.device))))
        raise CorruptionError(trainer.current_epoch, batch_idx, faulty, {rank: devices[rank] for rank in faulty})

    def teardown(self, trainer: TrainerProtocol, module: Any, stage: str) -> None:
        """Drop the steps of the fit."""
        self._steps = None

    def _leave_out(
        self, trainer: TrainerProtocol, module: Any, batch: Any, batch_idx: int, differing: list[str]
    ) -> None:
        """Note what differs at the start, and warn of it. Collective."""
        with _known_to_torch() as operations:
            self._repeat(trainer, module, batch, batch_idx)
        of_ranks = trainer.strategy.all_gather((differing, operations))
        self.left_out = sorted({name for names, _ in of_ranks for name in names})
        known = sorted({name for _, names in of_ranks for name in names})
        because = f" Torch knows that {_listed(known)} is not deterministic." if known else ""
        warn_user(
            f"RepeatedStep leaves out what differs when the first step is repeated: {_listed(self.left_out)}.{because} "
            "Pass `deterministic=True` to the trainer to have all of it compared."
        )

    def _repeat(self, trainer: Any, module: nn.Module, batch: Any, batch_idx: int) -> dict[str, int]:
        """Return digests of what a step computes, and undo it. Collective."""
        assert self._steps is not None
        with restored(module, (), trainer.strategy, with_weights=False), trainer.trial_step():
            return _digests_of_step(self._steps, module, copy.deepcopy(batch), batch_idx, trainer.strategy.device)


def _digests_of_step(
    steps: TrialSteps, module: nn.Module, batch: Any, batch_idx: int, device: torch.device
) -> dict[str, int]:
    """Return digests of loss, gradients, buffers and random numbers of a forward and a backward pass, by name."""
    digests: dict[str, Tensor] = {}

    def note(name: str, gradient: Tensor) -> None:
        digests[f"gradient of {name}"] = digest_of(gradient)

    wanted = [(name, one) for name, one in module.named_parameters() if one.requires_grad]
    plain: list[tuple[str, Any]] = [(name, one) for name, one in wanted if not hasattr(one, "device_mesh")]
    handles = [one.register_hook(partial(note, name)) for name, one in plain]  # before gradients are reduced
    try:
        loss = steps.forward(batch, batch_idx)
        if loss is not None:
            digests["loss"] = digest_of(loss)
            steps.backward(loss)
    finally:
        for handle in handles:
            handle.remove()
    digests |= {_REDUCED + name: digest_of(one.grad) for name, one in wanted if one.grad is not None}
    digests |= {f"buffer {name}": digest_of(one) for name, one in module.named_buffers()}
    generators: dict[str, str] = json.loads(TorchGenerators(device).read()) | slow_generators()
    randoms = {f"random numbers ({name})": int(text, 16) for name, text in generators.items()}
    numbers = torch.stack([one.to(device) for one in digests.values()]).tolist() if digests else []
    return dict(zip(digests, numbers, strict=True)) | randoms


@contextmanager
def _known_to_torch() -> Iterator[list[str]]:
    """Yield a list that gets the operations of the block that torch knows not to be deterministic."""
    found: list[str] = []
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.use_deterministic_algorithms(True, warn_only=True)
        try:
            yield found
        finally:
            torch.use_deterministic_algorithms(before[0], warn_only=before[1])
    matches = (_NOT_DETERMINISTIC.match(str(one.message)) for one in caught)
    found += dict.fromkeys(match[1] for match in matches if match is not None)


def _local(names: Iterable[str]) -> list[str]:
    """Return what a rank computed by itself: a wrong number of one reaches all in what is reduced."""
    return [name for name in names if not name.startswith(_REDUCED)]


def _name_of(device: torch.device) -> str:
    name = name_of_device(device)
    return str(device) if name == device.type else f"{device}, {name}"


def _listed(names: Sequence[str], most: int = 4) -> str:
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + rest
