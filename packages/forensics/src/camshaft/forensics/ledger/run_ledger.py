"""The callback that keeps a run's ledger."""

from __future__ import annotations

import json
import math
import os
import platform
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import attrs
import torch
from torch import Tensor

from camshaft.callbacks.arguments import check_number
from camshaft.callbacks.monitoring import from_rank_zero
from camshaft.callbacks.monitors.loss_watch import gradient_norm
from camshaft.forensics.ledger.digests import (
    BatchDigest,
    TorchGenerators,
    digests_of,
    plain,
    settings_of,
    signed_as_hex,
    slow_generators,
    states_of,
    weights_of,
)
from camshaft.forensics.ledger.ledger_file import (
    LedgerFile,
    Position,
    bits_of,
    determinism,
    json_of,
    versions,
)
from camshaft.hooks_core import Callback
from camshaft.hooks_core.support.devices import name_of_device

if TYPE_CHECKING:
    from camshaft.hooks_core.protocols import Strategy, TrainerProtocol

_ARGUMENTS = (
    *("max_epochs", "max_steps", "gradient_clip_val", "gradient_clip_algorithm"),
    *("val_check_interval", "check_val_every_n_epoch"),
)  # not the length of windows, which may change from epoch to epoch and shows in "batches"
Number = tuple[float | Tensor, torch.dtype]
"""A float, or a scalar that is still on its device, and the dtype that it has or had."""


class RunLedger(Callback):
    """Writes down what each update did, to the bit, so that two runs can be compared; see `compare`.

    A line per update holds, under these names (logical ranks, if any, take the place of processes, in the header too):

    - "step" (from 1), "epoch", and "batches": the indices of the batches since the line before, so those of its window.
    - "samples": for each process and batch the dataset indices, where the trainer knows them (a `SampleSource`), else a
      digest of the batch as it comes to the step.
    - "random": for each process digests of the states of torch's generators, of the CPU ("torch") and of the process's
      other device ("device"), right before the update.
    - "loss": for each process the bits of each loss that was differentiated for the update, as `dtype:hexadecimal`.
      Losses of a window are divided by its length by then.
    - "norm": for each process the bits of the 2-norm of the gradients before clipping, for each optimizer. On the CPU
      it is computed in double precision from the norms of the parameters; with logical ranks along a tree.

    In the first line, and every `weights_every_n_steps` updates after it, as the update finds them:

    - "weights" and "optimizer": digests of each parameter, buffer and tensor of an optimizer's state, the same on any
      number of processes and however they are sharded; "settings" of the optimizers' groups.
    - "random" also covers Python's and NumPy's global generators ("python", "numpy"), which are slow to read.

    The last line of a run that came to its end has "end", its last step, "epoch", the number of epochs that are
    complete, and these three of then.

    The first line of the file is a header: versions, arguments, lengths of data, processes, switches of determinism.
    What differs in a run that goes on is noted in a line with "resumed" and "changed". Nothing waits for a device at a
    step: values stay there and are written every 100 updates, at the end of an epoch, and before a checkpoint, which
    are collective. Rank 0 writes. A checkpoint holds the place in the ledger: a run that is resumed cuts off the lines
    after it, so the ledger of a run that was killed and resumed is that of one that was not, line for line. The ledger
    is on the disk before the checkpoint is. A run that begins anew keeps the ledger of the one before beside its own,
    as `ledger.previous.jsonl`.

    Random numbers of worker processes are not covered; what they change in a batch shows in its loss.

    Args:
        path: The file, or a folder (a path without a suffix) for `ledger.jsonl`, or the URL of one in a store. A store
            has no files that grow: there the ledger is uploaded whole before each checkpoint, at the end, and after an
            error.
        every_n_steps: Updates from one line to the next; the first update always has one.
        weights_every_n_steps: Updates between two lines with digests of weights; such an update has a line anyway.

    Attributes:
        path: The file, or its URL.

    Raises:
        InvalidArgumentError: If nothing can be written at a URL, or a number is less than 1.
        ModuleNotFoundError: If the path is a URL and fsspec is not installed.
        FileNotFoundError, LedgerError: When training begins, on all ranks, if the ledger of the run that is resumed is
            not there, is damaged, or is another run's.
    """

    only_observes = True
    NUM_PER_GROUP: ClassVar[int] = 100

    def __init__(self, path: str | os.PathLike[str], every_n_steps: int = 1, weights_every_n_steps: int = 100) -> None:
        where = type(self).__name__
        limits: dict[str, Any] = {"least": 1, "is_int": True}
        check_number(where, **limits, every_n_steps=every_n_steps, weights_every_n_steps=weights_every_n_steps)
        self._file = LedgerFile(path)
        self.every_n_steps = every_n_steps
        self.weights_every_n_steps = weights_every_n_steps
        self._trainer: TrainerProtocol | None = None  # while it trains
        self._take_samples: Callable[[], Any] | None = None
        self._generators: TorchGenerators | None = None
        self._reads_at_once = True  # on the CPU, where reading a value waits for nothing
        self._adds_on_host = True
        self._epoch = 0
        self._ranks = range(1)  # of which this process notes the windows: itself, or its logical ranks
        self._data_ranks: list[int] = []
        self._batches: list[tuple[int, Any, Any]] = []  # the newest of each: index, samples, and the batch itself
        self._windows: list[_Window] = []
        self._rows: list[Update] = []
        self._state: dict[str, Any] = {}  # as in checkpoints
        self._loaded: dict[str, Any] = {}

    @property
    def path(self) -> Path | str:
        """The file, or its URL."""
        return self._file.path

    def on_fit_start(self, trainer: TrainerProtocol, module: Any) -> None:
        """Follow the samples of the batches, if the trainer knows them."""
        follow = getattr(trainer, "follow_samples", None)
        self._take_samples = None if follow is None else follow()
        self._ranks = _ranks_of(trainer)
        self._batches, self._rows = [(0, None, None) for _ in self._ranks], []
        self._begin_windows()

    def on_train_start(self, trainer: TrainerProtocol, module: Any) -> None:
        """Begin the ledger, or go on with that of the run that is resumed. Collective."""
        strategy = trainer.strategy
        self._trainer, self._epoch = trainer, trainer.current_epoch
        self._generators = TorchGenerators(strategy.device)
        self._reads_at_once = strategy.device.type == "cpu"
        is_sharded = any(hasattr(parameter, "device_mesh") for parameter in module.parameters())
        self._adds_on_host = self._reads_at_once and not is_sharded
        data_ranks = list(range(_num_logical_ranks(trainer) or 0)) or strategy.all_gather(strategy.data_rank)
        state, self._loaded = self._loaded or (self._state if trainer.global_step else {}), {}
        self._data_ranks = data_ranks
        if state:
            of_state = state["windows"], state.get("data_ranks"), data_ranks
            self._windows = [_Window.of_rank(*of_state, rank) for rank in self._ranks]
        self._open(state, _facts(trainer, module, data_ranks), trainer)

    def on_train_epoch_start(self, trainer: TrainerProtocol, module: Any) -> None:
        """Forget batches whose gradients were dropped at the end of the epoch before."""
        self._epoch = trainer.current_epoch
        self._begin_windows()

    def on_train_batch_start(self, trainer: TrainerProtocol, module: Any, batch: Any, batch_idx: int) -> None:
        """Note a batch."""
        samples = None if self._take_samples is None else self._take_samples()
        place = self._place(trainer)
        self._batches[place] = batch_idx, samples, batch
        if self._is_due(trainer.global_step + 1):
            self._add_batch(place)

    def on_before_backward(self, trainer: TrainerProtocol, module: Any, loss: Tensor) -> None:
        """Note a loss."""
        if not self._is_due(trainer.global_step + 1):
            return
        place = self._place(trainer)
        window = self._windows[place]
        if not window.batches:  # a further update of the same batch
            self._add_batch(place)
        window.losses.append((loss.item() if self._reads_at_once else loss.detach().clone(), loss.dtype))

    def on_before_optimizer_step(self, trainer: TrainerProtocol, module: Any, optimizer: Any) -> None:
        """Note an update. Collective where parameters are sharded, and where weights are digested."""
        step = trainer.global_step + 1
        if not self._is_due(step):
            return
        windows = self._windows
        norm = self._norm_of(optimizer, trainer)
        if norm is not None:
            for window in windows:
                window.norms.append(norm)
        self._begin_windows()
        rows = self._rows
        assert self._generators is not None
        if rows and rows[-1].step == step:  # of another optimizer, or evaluated again, or skipped before
            rows[-1].add(windows)
            rows[-1].random = self._generators.read()
            return
        if len(rows) >= self.NUM_PER_GROUP:
            self._write(trainer)
            rows = self._rows
        digests = self._digests(trainer, module) if self._has_digests(step) else None
        rows.append(Update(step, self._epoch, windows, self._generators.read(), digests))

    def on_train_epoch_end(self, trainer: TrainerProtocol, module: Any) -> None:
        """Write the lines. Collective."""
        self._write(trainer)

    def on_train_end(self, trainer: TrainerProtocol, module: Any) -> None:
        """Write the lines, and the last one. Collective."""
        self._state = self._collect(trainer)
        digests = self._digests(trainer, module)
        if trainer.is_global_zero:
            self._file.append([json_of({"end": trainer.global_step, "epoch": trainer.current_epoch, **digests.read()})])
            self._file.sync()
        self._trainer = None

    def on_exception(self, trainer: TrainerProtocol, module: Any, exception: BaseException) -> None:
        """Write the lines of a single process; several cannot exchange theirs after an error."""
        if self._trainer is not None and trainer.strategy.world_size == 1:
            self._write(trainer)
            if self._file.position is not None:
                self._file.sync()

    def teardown(self, trainer: TrainerProtocol, module: Any, stage: str) -> None:
        """Forget what was not written, as after an error."""
        self._trainer = self._take_samples = self._generators = None
        self._batches, self._rows = [], []
        self._file.close()

    def state_dict(self) -> dict[str, Any]:
        """Write the lines, durably, and return the place in the ledger and the open windows. Collective in training."""
        trainer = self._trainer
        if trainer is not None and (trainer.strategy.world_size == 1 or sys.exception() is None):
            self._state = self._collect(trainer)
        return self._state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take the place in the ledger at which a resumed run goes on."""
        self._loaded = state_dict

    def _is_due(self, step: int) -> bool:
        return (step - 1) % self.every_n_steps == 0 or self._has_digests(step)

    def _has_digests(self, step: int) -> bool:
        return (step - 1) % self.weights_every_n_steps == 0

    def _begin_windows(self) -> None:
        self._windows = [_Window() for _ in self._ranks]

    def _place(self, trainer: TrainerProtocol) -> int:
        """Return the place of the logical rank that runs among those of this process; 0 without."""
        rank: int | None = getattr(trainer, "logical_rank", None)
        return 0 if rank is None else rank - self._ranks.start

    def _add_batch(self, place: int) -> None:
        (batch_idx, samples, batch), window = self._batches[place], self._windows[place]
        window.batches.append(batch_idx)
        window.samples.append(BatchDigest(batch) if samples is None else samples)

    def _norm_of(self, optimizer: Any, trainer: TrainerProtocol) -> Number | None:
        """Return the norm of an optimizer's gradients; None if there are none. Collective if they are sharded."""
        strategy: Any = trainer.strategy
        norm: Tensor | None
        if _num_logical_ranks(trainer) is not None and hasattr(strategy, "gradient_norm"):
            norm = strategy.gradient_norm(optimizer)
            return None if norm is None else (norm.item() if self._reads_at_once else norm, norm.dtype)
        if self._adds_on_host:
            gradients = [
                gradient
                for group in optimizer.param_groups
                for parameter in group["params"]
                if (gradient := parameter.grad) is not None
            ]
            try:
                # What `get_total_norm` calls once it has sorted gradients by device and dtype, which takes far longer.
                norms = [norm.item() for norm in torch._foreach_norm(gradients)] if gradients else []
            except NotImplementedError:  # of sparse gradients
                pass
            else:
                return (math.hypot(*norms), torch.float64) if norms else None
        norm = gradient_norm(optimizer)
        return None if norm is None else (norm, norm.dtype)

    def _digests(self, trainer: TrainerProtocol, module: Any) -> _Digests:
        """Return digests of weights and optimizers. Collective."""
        weights, states = weights_of(module), states_of(module, trainer.optimizers)
        named = {f"w{name}": value for name, value in weights.items()}
        named |= {f"s{name}": value for name, value in states.items()}
        digests = digests_of(named, trainer.strategy, trainer.strategy.device)
        return _Digests(list(weights), list(states), digests, settings_of(trainer.optimizers), slow_generators())

    def _open(self, state: dict[str, Any], facts: dict[str, Any], trainer: TrainerProtocol) -> None:
        """Begin or go on with the ledger. Collective."""
        from_rank_zero(trainer.strategy, lambda: self._open_file(state, facts, trainer.global_step))

    def _open_file(self, state: dict[str, Any], facts: dict[str, Any], step: int) -> None:
        if not state:
            self._file.begin({**facts, "first_step": step + 1})
            return
        header = self._file.resume(Position(*state["position"]))
        changed = {name: [header.get(name), fact] for name, fact in facts.items() if header.get(name) != fact}
        if changed:
            self._file.append([json_of({"resumed": step, "changed": changed})])

    def _collect(self, trainer: TrainerProtocol) -> dict[str, Any]:
        """Write the lines, durably. Returns the state for a checkpoint. Collective."""
        self._write(trainer)
        of_processes = trainer.strategy.all_gather([window.plain() for window in self._windows])
        windows = [window for of_process in of_processes for window in of_process]
        if self._file.position is not None:  # on rank 0
            self._file.sync()
        position = self._file.position
        place = None if position is None else list(attrs.astuple(position))
        return {"position": place, "windows": windows, "data_ranks": self._data_ranks}

    def _write(self, trainer: TrainerProtocol) -> None:
        """Write the lines of all updates that were made. Collective."""
        rows, self._rows = self._rows, []
        if not rows:
            return
        if rows[-1].step > trainer.global_step:  # a scaler of losses skipped it: the next one has the same step
            skipped = rows.pop()
            skipped.add(self._windows)
            self._windows = skipped.windows
        if not self._reads_at_once:
            _fetch([window for row in rows for window in row.windows])
        own = [row.parts() for row in rows]
        strategy = trainer.strategy
        of_ranks = [own] if strategy.world_size == 1 else strategy.all_gather(own)
        lines = ([part for of_process in parts for part in of_process] for parts in zip(*of_ranks, strict=True))
        joined = [tuple(map(",".join, zip(*parts, strict=True))) for parts in lines]
        self._take(strategy, rows, joined)

    def _take(self, strategy: Strategy, rows: Sequence[Update], parts: Sequence[tuple[str, ...]]) -> None:
        """Take some updates, each with the parts of its line. Collective."""
        if strategy.global_rank == 0:
            self._file.append([row.line(of_row) for row, of_row in zip(rows, parts, strict=True)])


@attrs.define(eq=False)
class _Window:
    """Notes of the batches since the latest update.

    Attributes:
        batches: Indices of the batches.
        samples: For each its indices in the dataset, or its digest.
        losses: The losses that were differentiated.
        norms: Norms of gradients; before an update those of one that a scaler of losses skipped.
    """

    batches: list[int] = attrs.field(factory=list)
    samples: list[Any] = attrs.field(factory=list)
    losses: list[Any] = attrs.field(factory=list)
    norms: list[Any] = attrs.field(factory=list)

    def add(self, later: _Window) -> None:
        """Add what was noted later for the same update."""
        if self.batches and later.batches[:1] == self.batches[-1:]:  # the same batch once more
            del later.batches[0], later.samples[0]
        for name, noted in attrs.asdict(later, recurse=False).items():
            getattr(self, name).extend(noted)

    @classmethod
    def of_rank(
        cls, windows: Sequence[Sequence[Any]], before: Sequence[int] | None, now: Sequence[int], rank: int
    ) -> _Window:
        """Return the window of a process of a resumed run.

        With other processes the first one notes the samples of all, in their order; losses and norms of those that are
        gone are noted by one that goes on for them.

        Args:
            windows: Those of all processes of then, as plain values.
            before: The data ranks of then; None if they are unknown.
            now: Those of now.
            rank: Index of the process.
        """
        if len(windows) == len(now) and before in (None, list(now)):
            return cls(*map(list, windows[rank]))
        shares = [windows[list(before).index(one)] for one in sorted(set(before))] if before else list(windows)
        batches = list(shares[0][0])
        samples: list[Any] = [[] for _ in batches]
        if now[rank] == 0:
            samples = [
                _in_turn([share[1][idx] for share in shares if idx < len(share[1])]) for idx in range(len(batches))
            ]
        mine = shares[now[rank] :: len(set(now))]
        return cls(batches, samples, *([number for share in mine for number in share[place]] for place in (2, 3)))

    def plain(self) -> list[list[Any]]:
        """Return it as plain values; waits for the device."""
        samples = [one.hex() if isinstance(one, BatchDigest) else one for one in self.samples]
        _fetch([self])
        losses, norms = ([*json.loads(_bits_of(numbers))] for numbers in (self.losses, self.norms))
        return [self.batches, samples, losses, norms]


def _in_turn(batches: Sequence[Any]) -> Any:
    """Return the samples of the batches of all processes, one of each in turn; digests as they are."""
    if not all(isinstance(batch, list) for batch in batches):
        return list(batches)
    return [batch[idx] for idx in range(max(map(len, batches))) for batch in batches if idx < len(batch)]


@attrs.define(eq=False)
class Update:
    """An update that was noted, to be written.

    Attributes:
        step: Its number, from 1.
        epoch: Its epoch.
        windows: What was noted of the batches of this process, or of each logical rank that it plays.
        random: Digests of torch's generators, as JSON.
        digests: Digests of weights and optimizers; None without them.
    """

    step: int
    epoch: int
    windows: list[_Window]
    random: str
    digests: _Digests | None

    def add(self, later: Sequence[_Window]) -> None:
        """Add what was noted later for the same update."""
        for window, its_later in zip(self.windows, later, strict=True):
            window.add(its_later)

    def parts(self) -> list[tuple[str, ...]]:
        """Return the parts of this process in the line, as JSON: samples, generators, losses and norms of gradients."""
        random = self.random
        if self.digests is not None:
            random = f"{random[:-1]},{json_of(self.digests.slow_generators)[1:]}"
        return [
            (_json_of_samples(window.samples), random, _bits_of(window.losses), _bits_of(window.norms))
            for window in self.windows
        ]

    def line(self, parts: tuple[str, ...]) -> str:
        """Return the line, without its chain, of the parts of all processes, joined by commas. Waits for the device."""
        samples, random, losses, norms = parts
        line = (
            f'{{"step":{self.step},"epoch":{self.epoch},"batches":{self.windows[0].batches},"samples":[{samples}],'
            f'"random":[{random}],"loss":[{losses}],"norm":[{norms}]}}'
        )
        return line if self.digests is None else f"{line[:-1]},{json_of(self.digests.read())[1:]}"


@attrs.frozen
class _Digests:
    """Digests of weights and optimizers, still on their device."""

    weights: list[str]
    states: list[str]
    digests: Tensor
    settings: Any
    slow_generators: dict[str, str]

    def read(self) -> dict[str, Any]:
        """Return them as a line has them. Waits for the device."""
        texts = [signed_as_hex(digest) for digest in self.digests.tolist()]
        weights = dict(zip(self.weights, texts, strict=False))
        states = dict(zip(self.states, texts[len(self.weights) :], strict=True))
        return {"weights": weights, "optimizer": states, "settings": self.settings}


def _fetch(windows: Sequence[_Window]) -> None:
    """Replace scalars that are on a device by floats; waits for it, once for each dtype."""
    waiting: dict[tuple[torch.device, torch.dtype], list[tuple[list[Any], int]]] = {}
    for numbers in (numbers for window in windows for numbers in (window.losses, window.norms)):
        for place, number in enumerate(numbers):  # of a window that was restored texts
            if isinstance(number[0], Tensor):
                waiting.setdefault((number[0].device, number[0].dtype), []).append((numbers, place))
    for (_, dtype), places in waiting.items():
        scalars = torch.stack([numbers[place][0].reshape(()) for numbers, place in places])
        for (numbers, place), value in zip(places, scalars.tolist(), strict=True):
            numbers[place] = value, dtype


def _bits_of(numbers: list[Any]) -> str:
    """Return the bits of floats and their dtypes as JSON, in a fraction of the time that `json` takes; texts stay."""
    texts = [number if type(number) is str else bits_of(*number) for number in numbers]
    return f"""["{'","'.join(texts)}"]""" if texts else "[]"


def _json_of_samples(samples: list[Any]) -> str:
    for one in samples:
        if type(one) is not list or not one or type(one[0]) is not int:
            return json_of([one.hex() if isinstance(one, BatchDigest) else one for one in samples])
    return repr(samples)  # lists of ints, which JSON writes as Python does


def _num_logical_ranks(trainer: TrainerProtocol) -> int | None:
    count: int | None = getattr(trainer.strategy, "num_logical_ranks", None)
    return count


def _ranks_of(trainer: TrainerProtocol) -> range:
    """Return the ranks whose windows this process notes: its logical ranks, or itself."""
    strategy = trainer.strategy
    own: range | None = None if _num_logical_ranks(trainer) is None else strategy.logical_ranks  # type: ignore[attr-defined]
    return range(strategy.global_rank, strategy.global_rank + 1) if own is None else own


def _facts(trainer: TrainerProtocol, module: Any, data_ranks: list[int]) -> dict[str, Any]:
    """Return what a run is, as the header has it: plain values that are the same when the same run is started again."""
    strategy, count = trainer.strategy, _num_logical_ranks(trainer)
    return {
        "versions": versions(),
        "platform": [platform.system(), platform.machine()],
        "device": name_of_device(strategy.device),
        "world_size": count or strategy.world_size,
        "data_ranks": data_ranks,
        "strategy": f"{count} logical ranks" if count else plain(strategy),
        "precision": str(getattr(trainer, "precision", None)),
        "arguments": plain({name: getattr(trainer, name, None) for name in _ARGUMENTS}),
        "module": _own_class(module) if count else plain(module),
        "hyperparameters": plain(getattr(module, "hparams", None) or {}),
        "num_parameters": sum(parameter.numel() for parameter in module.parameters()),
        "optimizers": [type(optimizer).__name__ for optimizer in trainer.optimizers],
        "data": {"num_batches": str(trainer.num_training_batches), "num_samples": _num_samples(trainer)},
        "seed": os.environ.get("PL_GLOBAL_SEED"),
        "determinism": {
            **determinism(),
            "CUBLAS_WORKSPACE_CONFIG": os.environ.get("CUBLAS_WORKSPACE_CONFIG"),
            "PYTHONHASHSEED": os.environ.get("PYTHONHASHSEED"),
        },
    }


def _own_class(module: Any) -> str:
    """Return the name of a module's class, without those that `fully_shard` puts before it."""
    kinds = [kind for kind in type(module).__mro__ if not kind.__module__.startswith("torch.distributed.fsdp")]
    return f"{kinds[0].__module__}.{kinds[0].__qualname__}"


def _num_samples(trainer: TrainerProtocol) -> int | None:
    dataset = getattr(trainer.train_dataloader, "dataset", None)
    try:
        return len(dataset)  # type: ignore[arg-type]
    except (TypeError, NotImplementedError):
        return None
