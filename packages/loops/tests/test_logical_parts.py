"""The parts of a run on logical ranks, each by itself: shares of loaders, random numbers, and what is refused."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from bare_parts import BareStrategy, BareTrainer, Net, StepsByHand, Unsized, hooked, make_batches, make_loader, sgd
from logical_parts import LogicalStrategy
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler, TensorDataset
from torchmetrics import SumMetric

from camshaft.loops import PredictLoop, Run
from camshaft.loops.data.logical_loader import LogicalLoader
from camshaft.loops.metrics import MetricLog
from camshaft.loops.state.logical_ranks import LogicalRanks
from camshaft.loops.state.random_state import are_same, mixed_seed, random_state, seed_global_numbers

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def run_of(own: range, count: int = 4) -> Run:
    run = Run(verb="fit", module=nn.Module(), strategy=BareStrategy(), trainer=None)
    run.logical = LogicalRanks(count, own, torch.device("cpu"), base_seed=1)
    return run


def indices_of(loader: Any, own: range, stage: str = "train", num_batches: float = float("inf")) -> list[list[Any]]:
    torch.manual_seed(0)
    return [[batch.tolist() for batch in step] for step in LogicalLoader(loader, run_of(own), stage, 0, num_batches)]


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("number", [1, 7, 24, 30])
@pytest.mark.parametrize("stage", ["train", "validate"])
def test_processes_share_what_one_process_reads(number: int, stage: str, drop_last: bool) -> None:
    loader = DataLoader(range(number), batch_size=3, shuffle=stage == "train", drop_last=drop_last)  # type: ignore[arg-type]
    whole = indices_of(loader, range(4), stage)
    halves = [indices_of(loader, own, stage) for own in (range(2), range(2, 4))]
    assert len(whole) == len(halves[0]) == len(halves[1]) == len(LogicalLoader(loader, run_of(range(4)), stage, 0))
    assert whole == [one + other for one, other in zip(*halves, strict=True)]
    seen = [index for step in whole for batch in step for index in batch]
    if stage == "validate":
        assert seen == list(range(number - (number % 3 if drop_last else 0)))
    elif drop_last:
        assert len(seen) == len(set(seen))
    else:
        assert set(seen) == set(range(number)) and len(seen) == -(-number // 4) * 4
    if stage == "train":  # each rank reads every fourth sample
        torch.manual_seed(0)
        order = list(DataLoader(range(number), batch_size=None, shuffle=True).sampler)  # type: ignore[arg-type]
        if whole:
            assert whole[0][1] == [order[place % number] for place in (1, 5, 9)][: len(whole[0][1])]


def test_batches_of_a_batch_sampler_are_shared_whole() -> None:
    batches = [[first, first + 1] for first in range(0, 10, 2)]
    loader = DataLoader(range(10), batch_sampler=batches)  # type: ignore[arg-type]
    assert indices_of(loader, range(1, 3)) == [[[2, 3], [4, 5]], [[0, 1], [2, 3]]]
    assert indices_of(loader, range(1, 3), "test") == [[[2, 3], [4, 5]], []]
    assert indices_of(loader, range(4), "test", 2) == [[[0, 1], [2, 3]]]


def test_a_pass_goes_on_from_its_state_in_other_hands() -> None:
    loader = DataLoader(range(40), batch_size=2, shuffle=True)  # type: ignore[arg-type]
    whole = indices_of(loader, range(4))
    torch.manual_seed(0)
    begun = LogicalLoader(loader, run_of(range(2)), "train", 0)
    steps = iter(begun)
    next(steps), next(steps)
    resumed = LogicalLoader(loader, run_of(range(3, 4)), "train", 0)
    resumed.load_state_dict(begun.state_dict())
    assert [[batch.tolist() for batch in step] for step in resumed] == [step[3:] for step in whole[2:]]
    with pytest.raises(ValueError, match="`sampler` must be one that gives the order of the checkpoint again"):
        LogicalLoader(DataLoader(range(40)), run_of(range(4)), "train", 0).load_state_dict(begun.state_dict())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="must be that of 30 samples"):
        LogicalLoader(DataLoader(range(30)), run_of(range(4)), "train", 0).load_state_dict(begun.state_dict())  # type: ignore[arg-type]


def test_a_pass_that_goes_on_draws_nothing_that_later_passes_draw_from() -> None:
    generator = torch.Generator()
    loader = DataLoader(range(40), batch_size=2, shuffle=True, generator=generator)  # type: ignore[arg-type]
    begun, resumed = [LogicalLoader(loader, run_of(range(4)), "train", 0) for _ in range(2)]
    next(iter(begun))
    resumed.load_state_dict(begun.state_dict())
    numbers = random_state([generator])
    iter(resumed)
    assert are_same(random_state([generator]), numbers)


class Drawing(Dataset[Any]):
    def __getitem__(self, index: int) -> Any:
        return torch.tensor(draws())

    def __len__(self) -> int:
        return 24


@pytest.mark.parametrize("batch_size", [2, None])
def test_batches_are_made_with_the_same_numbers_in_whichever_process(batch_size: int | None) -> None:
    loader = DataLoader(Drawing(), batch_size=batch_size)
    whole, half = indices_of(loader, range(4)), indices_of(loader, range(2, 4))
    assert half == [step[2:] for step in whole]
    assert len({str(batch) for step in whole for batch in step}) == 4 * len(whole)
    in_worker = DataLoader(Drawing(), batch_size=batch_size, num_workers=1)
    assert indices_of(in_worker, range(2, 4)) == half


def draws() -> list[float]:
    return [torch.rand(()).item(), random.random(), float(np.random.rand())]


def test_draws_depend_on_seed_step_part_and_rank_alone() -> None:
    def parts(own: range, base_seed: int = 3, step: int = 5) -> dict[Any, list[float]]:
        ranks, found = LogicalRanks(4, own, torch.device("cpu"), base_seed), {}
        ranks.begin_step("train", 1, step)
        for part in range(2):
            for _, rank in ranks.each():
                found[part, rank] = draws()
            assert ranks.current is None
            found[part, "common"] = draws()
        return found

    whole = parts(range(4))
    assert len({value for drawn in whole.values() for value in drawn}) == 3 * len(whole)
    assert parts(range(2, 4)) == {key: value for key, value in whole.items() if key[1] in (2, 3, "common")}
    for other in (parts(range(4), base_seed=4), parts(range(4), step=6)):
        assert not {value for drawn in other.values() for value in drawn} & {v for d in whole.values() for v in d}


def test_generators_of_one_seed_do_not_draw_alike() -> None:
    seed_global_numbers(mixed_seed(1, 2, 3))
    first = torch.randint(2**31, (8,)).tolist()
    seed_global_numbers(mixed_seed(1, 2, 3))
    assert not set(first) & {*np.random.randint(2**31, size=8).tolist(), *(random.getrandbits(31) for _ in range(8))}


class Counted(Net):
    """A metric that its owner computes at the end of each epoch, and resets."""

    def __init__(self, configure: Callable[[Net], Any] | None = None) -> None:
        super().__init__(configure)
        self.count = SumMetric()
        self.computed: list[float] = []

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.count(batch[0].shape[0])
        return self.loss(batch)

    def on_train_epoch_end(self) -> None:
        self.computed.append(self.count.compute().item())
        self.count.reset()


def test_metrics_are_computed_of_all_ranks_and_reset_for_all() -> None:
    module = Counted()
    BareTrainer(module, strategy=LogicalStrategy(4), max_epochs=2).fit(make_loader("dataloader", make_batches(8)))
    assert module.computed == [16.0, 16.0]
    assert "_sync_dist" not in vars(module.count)


def test_a_metric_that_is_computed_in_a_step_is_refused() -> None:
    class Computing(Counted):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.count.update(1.0)
            return self.count.compute() + self.loss(batch)

    trainer = BareTrainer(Computing(), strategy=LogicalStrategy(2), max_epochs=1)
    with pytest.raises(RuntimeError, match="`metric` must be computed outside of steps"):
        trainer.fit(make_loader("dataloader", make_batches(4)))


def test_hooks_come_once_for_each_rank_and_steps_once_for_all() -> None:
    log: list[Any] = []
    callback = hooked(
        on_train_batch_start=lambda trainer, module, batch, idx: log.append(("start", idx, trainer.global_step)),
        on_before_backward=lambda trainer, module, loss: log.append("backward"),
        on_after_backward=lambda trainer, module: log.append("after"),
        on_before_zero_grad=lambda trainer, module, optimizer: log.append("zero"),
        on_before_optimizer_step=lambda trainer, module, optimizer: log.append("step"),
        on_train_batch_end=lambda trainer, module, out, batch, idx: log.append(("end", idx, trainer.global_step)),
    )
    trainer = BareTrainer(Net(), callbacks=[callback], strategy=LogicalStrategy(2), max_epochs=1)
    trainer.fit(make_loader("dataloader", make_batches(4)))
    one = ["zero", "backward", "backward", "after", "step"]
    assert log == [
        *(("start", 0, 0), ("start", 0, 0), *one, ("end", 0, 1), ("end", 0, 1)),
        *(("start", 1, 1), ("start", 1, 1), *one, ("end", 1, 2), ("end", 1, 2)),
    ]


class Momentum(Net):
    """A slow copy of weights, which moves in each step."""

    def __init__(self) -> None:
        super().__init__()
        self.slow = nn.Parameter(torch.zeros(3), requires_grad=False)
        self.found: list[float] = []

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.move()
        return self.loss(batch)

    def move(self) -> None:
        self.found.append(self.slow.sum().item())
        self.slow.data = self.slow + 1


class MomentumAtEnd(Momentum):
    training_step = Net.training_step

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.move()


@pytest.mark.parametrize("kind", [Momentum, MomentumAtEnd])
def test_parameters_that_code_moves_move_once_in_a_step(kind: type[Momentum]) -> None:
    module = kind()
    BareTrainer(module, strategy=LogicalStrategy(2), max_epochs=1).fit(make_loader("dataloader", make_batches(8)))
    assert module.found == [0, 0, 3, 3, 6, 6, 9, 9] and module.slow.tolist() == [4.0] * 3


def test_one_rank_that_skips_the_epoch_skips_it_for_all() -> None:
    starts: list[int] = []

    def start(trainer: Any, module: Any, batch: Any, batch_idx: int) -> int | None:
        starts.append(batch_idx)
        return -1 if len(starts) == 4 else None  # of the second rank, in the second step

    trainer = BareTrainer(
        Net(), callbacks=[hooked(on_train_batch_start=start)], strategy=LogicalStrategy(2), max_epochs=1
    )
    trainer.fit(make_loader("dataloader", make_batches(8)))
    assert starts == [0, 0, 1, 1] and trainer.global_step == 1


def test_predictions_come_in_the_order_of_the_dataset() -> None:
    trainer = BareTrainer(Net(), strategy=LogicalStrategy(4))
    batches = make_batches(6)
    found = trainer.verb("predict", PredictLoop(), make_loader("dataloader", batches))
    assert [one.tolist() for one in found] == [trainer.module(x).tolist() for x, _ in batches]


class Stated(Dataset[Any]):
    def __getitem__(self, index: int) -> Any:
        return torch.ones(3), torch.ones(1)

    def __len__(self) -> int:
        return 8

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


class ReturnsNone(Net):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return None


class WithBatchNorm(Net):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.SyncBatchNorm(2)


DATA = TensorDataset(torch.ones(8, 3), torch.ones(8, 1))


@pytest.mark.parametrize(
    ("module", "loader", "settings", "message"),
    [
        (Net(), Unsized(make_batches(4)), {}, "`train loader` must be a DataLoader over a dataset with indices"),
        (Net(), make_loader("stream", make_batches(4)), {}, "`train loader` must be a DataLoader over a dataset"),
        (Net(), DataLoader(Stated()), {}, "`train loader` must be one whose dataset has no state"),
        (
            Net(),
            DataLoader(DATA, sampler=DistributedSampler(DATA, num_replicas=2, rank=0)),
            {},
            "without a sampler that gives each process a share",
        ),
        (Net(), DataLoader(DATA), {"use_distributed_sampler": False}, "`use_distributed_sampler` must be True"),
        (StepsByHand(), DataLoader(DATA), {}, "`strategy` must be a strategy that plays logical ranks which update by"),
        (WithBatchNorm(), DataLoader(DATA), {}, "`module` must be without SyncBatchNorm"),
        (ReturnsNone(sgd), DataLoader(DATA), {}, "`training_step` must be one that returns a loss on every rank"),
    ],
)
def test_what_cannot_be_equal_is_refused(module: Any, loader: Any, settings: dict[str, Any], message: str) -> None:
    trainer = BareTrainer(module, strategy=LogicalStrategy(2), max_epochs=1, **settings)
    with pytest.raises((TypeError, ValueError, RuntimeError), match=message):
        trainer.fit(loader)


def test_numbers_of_ranks_that_do_not_fit_and_a_log_for_one_rank_are_refused() -> None:
    for strategy, message in (
        (LogicalStrategy(3), "`logical_ranks` must be a power of two, but got 3"),
        (Wide(2), r"`number of processes` must be a number of processes that divides the logical ranks \(2\)"),
    ):
        with pytest.raises(ValueError, match=message):
            BareTrainer(Net(), strategy=strategy, max_epochs=1).fit(DataLoader(DATA))
    trainer = BareTrainer(Net(), strategy=LogicalStrategy(2), max_epochs=1)
    trainer.metrics = MetricLog(progress=trainer.progress)
    with pytest.raises(TypeError, match="Pass a `LogicalMetricLog`"):
        trainer.fit(DataLoader(DATA))


class Wide(LogicalStrategy):
    """One of four processes."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.world_size = 4

    def connect(self) -> None:
        pass


def test_a_checkpoint_goes_on_with_its_number_of_logical_ranks() -> None:
    trainer = BareTrainer(Net(), strategy=LogicalStrategy(4), max_epochs=1)
    trainer.fit(DataLoader(DATA))
    trainer.save_checkpoint("end")
    for strategy in (LogicalStrategy(2), BareStrategy()):
        with pytest.raises(ValueError, match=r"`logical_ranks` must be that of the checkpoint \(4\)"):
            BareTrainer(Net(), strategy=strategy, max_epochs=2).fit(DataLoader(DATA), checkpoint=trainer.load("end"))


class NamesWorldSize(Net):
    def on_train_start(self) -> None:
        self.share = 1 / getattr(self, "trainer", self).world_size if hasattr(self, "trainer") else 1.0


class Reducing(NamesWorldSize):
    def on_train_end(self) -> None:
        if torch.distributed.is_initialized():
            torch.distributed.all_reduce(self.layer.weight)


def test_code_that_names_the_processes_is_warned_of() -> None:
    trainer = BareTrainer(Reducing(), strategy=LogicalStrategy(2), max_epochs=1)
    with pytest.warns(UserWarning, match="Reducing names `all_reduce`, NamesWorldSize names `world_size`"):
        trainer.fit(DataLoader(DATA))
