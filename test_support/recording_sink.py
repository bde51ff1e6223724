"""A metric sink that writes down what loops tell it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor


class RecordingSink:
    """Every call and every change of `moment`, in order, as words; values to monitor are set by the test."""

    def __init__(self, **values: Tensor) -> None:
        self.calls: list[str] = []
        self.values = values
        self.batch: Any = None
        self.dataloader_idx = 0
        self._moment: Any = None

    @property
    def moment(self) -> Any:
        return self._moment

    @moment.setter
    def moment(self, moment: Any) -> None:
        self._moment = moment
        self.calls.append(f"moment {moment}")

    @property
    def callback_metrics(self) -> Mapping[str, Tensor]:
        return self.values

    def start_epoch(self, stage: str, num_dataloaders: int = 1, *, is_trial: bool = False) -> None:
        self.calls.append(f"start_epoch {stage} {num_dataloaders}{' trial' if is_trial else ''}")
        self._moment = "epoch"

    def enter(self, stage: str, moment: Any) -> None:
        self.calls.append(f"enter {stage} {moment}")
        self._moment = moment

    def log_returned(self, values: Mapping[str, Any], *, logger: bool, prog_bar: bool) -> None:
        where = " ".join(word for word, is_on in (("logger", logger), ("prog_bar", prog_bar)) if is_on)
        self.calls.append(f"log_returned {' '.join(values)}: {where}".rstrip())
        self.values |= values

    def end_train_batch(self, is_update: bool) -> None:
        self.calls.append(f"end_train_batch {is_update}")

    def end_epoch(self) -> list[dict[str, float]]:
        self.calls.append("end_epoch")
        return [{"logged": 1.0}]

    def discard(self) -> None:
        self.calls.append("discard")

    @contextmanager
    def trial(self) -> Iterator[None]:
        before = self._moment, self.batch, self.dataloader_idx
        self.calls.append("trial")
        self._moment = "batch"
        yield
        self._moment, self.batch, self.dataloader_idx = before
        self.calls.append("end of trial")

    def state_dict(self) -> dict[str, Any]:
        return {"values": dict(self.values)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.calls.append("load_state_dict")
        self.values = state["values"]
