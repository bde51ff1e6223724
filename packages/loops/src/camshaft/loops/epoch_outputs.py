"""What the steps of a training epoch returned, for the hooks of earlier eras at its end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import groupby
from typing import Any

import attrs
from torch import Tensor, nn

from camshaft.hooks_core.eras.behaviour import Behaviour, EpochOutputs
from camshaft.hooks_core.messages import must_be
from camshaft.hooks_core.user_warnings import warn_user
from camshaft.loops.kept_outputs import foreign_types, goes_to_cpu, kept, restored, saved
from camshaft.loops.run import Run


@attrs.frozen
class StepOutput:
    """What one step of a training epoch returned: of which batch, split and optimizer it is."""

    batch_idx: int
    split_idx: int
    optimizer_idx: int
    value: Any


class TrainingOutputs:
    """Keeps what the steps of a training epoch return, detached, by batch, split and optimizer.

    A step that a closure evaluates again counts once, with what it returned last.

    Args:
        run: A run whose `training_step` is not bound yet; the one that it has from here on is listened to.
        num_optimizers: Optimizers that take steps of their own.
    """

    def __init__(self, run: Run, num_optimizers: int) -> None:
        self._module: nn.Module = run.module
        self._device = run.strategy.device
        self._behaviour: Behaviour = run.hooks.behaviour
        self._num_optimizers = num_optimizers
        self._on_cpu = goes_to_cpu(run)
        self._steps: list[StepOutput] = []
        self._split: Any = None  # the batch, or the split of it, that the latest step was given
        self._place = (-1, 0)
        assert run.hooks.training_step is not None
        run.hooks.training_step = self._listening(run.hooks.training_step)

    def clear(self) -> None:
        """Forget everything."""
        self._steps, self._split, self._place = [], None, (-1, 0)

    def for_epoch_end(self) -> list[Any]:
        """The outputs of the epoch so far, in the form that the module's era has."""
        return arranged(self._steps, self._num_optimizers, self._behaviour.epoch_outputs)

    def state_dict(self) -> dict[str, Any]:
        """The outputs as tensors on the CPU and plain values; of others only what they are, with a warning."""
        foreign = {kind.__qualname__ for step in self._steps for kind in foreign_types(step.value)}
        if foreign:
            types = ", ".join(sorted(foreign))
            warn_user(
                f"The outputs that {self._name}.training_step has returned in this epoch are no tensors and plain "
                f"values alone ({types}), so a checkpoint cannot hold them: no run can resume from it inside of this "
                "epoch. Return tensors, numbers, strings, and lists, tuples and dictionaries of them."
            )
            return {"not_saved": types}
        steps = []
        for step in self._steps:
            value, were_elsewhere = saved(step.value)
            steps.append([step.batch_idx, step.split_idx, step.optimizer_idx, value, were_elsewhere])
        return {"steps": steps}

    def load_state_dict(self, state: dict[str, Any] | None) -> None:
        """Go on inside an epoch.

        Raises:
            ValueError: If the outputs of the epoch so far are not in the checkpoint.
        """
        if state is None or "steps" not in state:
            reason = "" if state is None else f", which cannot hold {state['not_saved']}"
            rule = f"one that holds what `training_step` returned before it inside of the epoch{reason}"
            action = "Resume from a checkpoint that was saved at an epoch's end."
            raise ValueError(must_be("checkpoint", rule, sorted(state or ()), f"{self._name}, fit", action))
        self.clear()
        for batch_idx, split_idx, optimizer_idx, value, were_elsewhere in state["steps"]:
            value = restored(value, were_elsewhere, self._device)
            self._steps.append(StepOutput(batch_idx, split_idx, optimizer_idx, value))

    @property
    def _name(self) -> str:
        return type(self._module).__qualname__

    def _listening(self, step: Callable[..., Any]) -> Callable[..., Any]:
        def kept_step(
            batch: Any, batch_idx: int, optimizer_idx: int | None = None, *arguments: Any, **keywords: Any
        ) -> Any:
            if optimizer_idx is None:
                outputs = step(batch, batch_idx, **keywords)
            else:
                outputs = step(batch, batch_idx, optimizer_idx, *arguments, **keywords)
            self._keep(batch, batch_idx, optimizer_idx or 0, outputs)
            return outputs

        return kept_step

    def _keep(self, batch: Any, batch_idx: int, optimizer_idx: int, outputs: Any) -> None:
        latest_batch_idx, split_idx = self._place
        if batch_idx != latest_batch_idx:
            split_idx = 0
        elif batch is not self._split:
            split_idx += 1
        self._split, self._place = batch, (batch_idx, split_idx)
        latest = self._steps[-1] if self._steps else None
        place = (batch_idx, split_idx, optimizer_idx)
        if latest is not None and (latest.batch_idx, latest.split_idx, latest.optimizer_idx) == place:
            self._steps.pop()  # evaluated again
        if outputs is not None:
            self._steps.append(StepOutput(*place, kept(self._item(outputs), on_cpu=self._on_cpu)))

    def _item(self, outputs: Any) -> Any:
        """A dictionary with the loss; from 1.0 on without the hidden state."""
        if isinstance(outputs, Tensor):
            return {"loss": outputs}
        if isinstance(outputs, Mapping) and not self._behaviour.returns_logs:
            return {name: value for name, value in outputs.items() if name != "hiddens"}
        return outputs


def arranged(steps: list[StepOutput], num_optimizers: int, form: EpochOutputs) -> list[Any]:
    """The outputs of an epoch as an era's hooks get them.

    Args:
        steps: What was kept, in order.
        num_optimizers: Optimizers that take steps of their own.
        form: "last_optimizer" gives the last output of each batch. Otherwise there is a list for each optimizer with an
            item for each batch ("by_optimizer"), or for each batch with an item for each optimizer ("by_batch"). With
            one optimizer that level is left out. Where batches are split, an item is a list with what each split has.
    """
    batches = [list(of_batch) for _, of_batch in groupby(steps, key=lambda step: step.batch_idx)]
    if form == "last_optimizer":
        return [of_batch[-1].value for of_batch in batches]
    is_split = any(step.split_idx for step in steps)
    if num_optimizers > 1 and form == "by_optimizer":
        return [_by_batch(_of_optimizer(batches, idx), is_split, False) for idx in range(num_optimizers)]
    return _by_batch(batches, is_split, num_optimizers > 1)


def _of_optimizer(batches: list[list[StepOutput]], optimizer_idx: int) -> list[list[StepOutput]]:
    own = [[step for step in of_batch if step.optimizer_idx == optimizer_idx] for of_batch in batches]
    return [of_batch for of_batch in own if of_batch]


def _by_batch(batches: list[list[StepOutput]], is_split: bool, has_several: bool) -> list[Any]:
    arranged: list[Any] = []
    for of_batch in batches:
        splits = [
            [step.value for step in of_split] for _, of_split in groupby(of_batch, key=lambda step: step.split_idx)
        ]
        of_splits = splits if has_several else [of_split[0] for of_split in splits]
        arranged.append(of_splits if is_split else of_splits[0])
    return arranged
