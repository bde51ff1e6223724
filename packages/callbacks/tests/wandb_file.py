"""Reads what Weights & Biases wrote offline: a log of records in LevelDB's format, each a message of wandb's own."""

from __future__ import annotations

import json
import struct
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from wandb.proto import wandb_internal_pb2

_BLOCK_BYTES = 32768
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4


def finished(path: Path) -> WandbRun:
    """A run that was finished; W&B's process writes its end a moment later."""
    deadline = time.monotonic() + 60
    while True:
        run = WandbRun(path)
        if run.exit_code is not None:
            return run
        assert time.monotonic() < deadline, f"{path} was never finished"
        time.sleep(0.05)


def wandb_files(save_dir: Path) -> list[Path]:
    return sorted(Path(save_dir).glob("wandb/offline-run-*/run-*.wandb"))


def records(path: Path) -> Iterator[Any]:
    content = path.read_bytes()
    assert content[:4] == b":W&B"
    position, parts = 7, b""
    while position + 7 <= len(content):
        left = _BLOCK_BYTES - position % _BLOCK_BYTES
        if left < 7:
            position += left
            continue
        checksum, length, kind = struct.unpack("<IHB", content[position : position + 7])
        data = content[position + 7 : position + 7 + length]
        assert checksum == zlib.crc32(data, zlib.crc32(bytes([kind]))), "a broken record"
        position += 7 + length
        parts = data if kind in (_FULL, _FIRST) else parts + data
        if kind in (_FULL, _LAST):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(parts)
            yield record


def _nested(items: Any) -> dict[str, Any]:
    """Values of a message, each put where its path of keys leads."""
    values: dict[str, Any] = {}
    for item in items:
        *outer, name = [item.key] if item.key else item.nested_key
        place = values
        for key in outer:
            place = place.setdefault(key, {})
        place[name] = json.loads(item.value_json)
    return values


class WandbRun:
    """A run as it is on disk: its rows, its configuration and what ended it."""

    def __init__(self, path: Path) -> None:
        self.rows: list[dict[str, Any]] = []
        self.config: dict[str, Any] = {}
        self.step_metrics: dict[str, tuple[str, bool]] = {}
        self.exit_code: int | None = None
        self.artifacts: list[Any] = []
        for record in records(path):
            kind = record.WhichOneof("record_type")
            if kind == "run":
                self.id, self.project, self.name = record.run.run_id, record.run.project, record.run.display_name
                self._configure(record.run.config.update)
            elif kind == "config":
                self._configure(record.config.update)
            elif kind == "history":
                row = _nested(record.history.item)
                self.rows.append({name: value for name, value in row.items() if name not in _OWN})
            elif kind == "metric":
                name = record.metric.name or record.metric.glob_name
                self.step_metrics[name] = record.metric.step_metric, record.metric.options.step_sync
            elif kind == "artifact":
                self.artifacts.append(record.artifact)
            elif kind == "exit":
                self.exit_code = record.exit.exit_code

    def points(self, metric: str) -> list[tuple[Any, Any]]:
        return [(row.get("trainer/global_step"), row[metric]) for row in self.rows if metric in row]

    def _configure(self, items: Any) -> None:
        self.config |= {name: value for name, value in _nested(items).items() if name != "_wandb"}


_OWN = ("_step", "_runtime", "_timestamp")
