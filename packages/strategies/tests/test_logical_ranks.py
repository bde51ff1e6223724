"""Logical ranks: the same bits on any number of processes. Run as a script by several, this file trains the cases."""

from __future__ import annotations

import copy
import functools
import os
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from launching import report, run_ranks
from logical_reference import CASES, NUM_RANKS, Gan, batch_of, clip, digest, train, train_by_hand, tree_sum
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy

from camshaft.strategies import DDPStrategy, ShardedStrategy, SingleDeviceStrategy, tree_reduce
from camshaft.strategies.logical_ranks import LogicalRanks

RESUMED = ["transformer, accumulating and clipping", "batch normalisation, accumulating", "branches, accumulating"]
# without blocks, of which all processes would have to enter the same ones
SHARDED: dict[str, dict[str, Any]] = {
    name: {"policy": lambda module: False} if "branches" in name else {}
    for name in CASES
    if name not in ("transformer in bf16-true", "bucket views", "fused updates")
}
# torch casts whole blocks, where autocast casts inputs of operations
OF_ITS_OWN = ["transformer in 16-mixed"]
SHARDED["transformer in bf16-mixed"] = {"mixed_precision": MixedPrecisionPolicy()}  # that leaves it to autocast
# the others have a precision of their own, or gradients that begin as zeros
BY_HAND = [name for name, case in CASES.items() if "precision" not in case.arguments and not case.zeros]


@functools.cache
def digests(num_processes: int, num_ranks: int, kind: str = "ddp") -> dict[str, Any]:
    """Return what the first process found, by case. Others must have found the same, buffers apart."""
    found = run_ranks(Path(__file__), num_processes, args=["train", num_ranks, kind]).succeeded().named
    assert all(one["all"] == found[0]["all"] for one in found)
    return found[0]


@functools.cache
def of_one_process(name: str, num_ranks: int = NUM_RANKS) -> dict[str, Any]:
    case = CASES[name]
    arguments = {key: value for key, value in case.arguments.items() if key == "precision"}
    return train(SingleDeviceStrategy("cpu", logical_ranks=num_ranks, **arguments), case)


@pytest.mark.parametrize("name", BY_HAND)
def test_one_process_trains_as_by_hand(name: str) -> None:
    expected, found = train_by_hand(CASES[name]), of_one_process(name)
    assert digest(expected) == digest({key: found[key] for key in expected})


@pytest.mark.processes
@pytest.mark.parametrize("num_processes", [2, 4])
@pytest.mark.parametrize("name", CASES)
def test_any_number_of_processes_has_the_same_bits(num_processes: int, name: str) -> None:
    assert digests(num_processes, NUM_RANKS)[name] == digest(of_one_process(name))


@pytest.mark.processes
@pytest.mark.parametrize("num_processes", [1, 2, 4])
@pytest.mark.parametrize("name", SHARDED)
def test_sharded_ones_have_the_bits_of_one_device(num_processes: int, name: str) -> None:
    expected = digests(1, NUM_RANKS, "sharded")[name] if name in OF_ITS_OWN else digest(of_one_process(name))
    assert digests(num_processes, NUM_RANKS, "sharded")[name] == expected


@pytest.mark.processes
@pytest.mark.parametrize("num_processes", [2, 4])
def test_processes_that_enter_other_sharded_blocks_do_not_go_on(num_processes: int) -> None:
    outcome = run_ranks(Path(__file__), num_processes, args=["blocks", num_processes])
    outcome.failed()
    assert "`blocks` must be entered in the same order on all processes, but got" in outcome.output


@pytest.mark.processes
@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["ddp", "sharded"])
@pytest.mark.parametrize("name", RESUMED)
def test_eight_processes_have_the_same_bits(name: str, kind: str) -> None:
    assert digests(8, 8, kind)[name] == digest(of_one_process(name, 8))


def test_one_process_of_data_parallelism_has_the_same_bits() -> None:
    strategy = DDPStrategy(accelerator="cpu", devices=1, logical_ranks=NUM_RANKS)
    strategy.connect()
    name = "batch normalisation, accumulating"
    assert digest(train(strategy, CASES[name])) == digest(of_one_process(name))


@pytest.mark.processes
def test_an_open_window_goes_on_on_other_numbers_of_processes(tmp_path: Path) -> None:
    for num_processes, until, kind in ((1, 2, ""), (4, 5, "sharded"), (4, 7, "ddp"), (1, 8, ""), (2, 12, "sharded")):
        for name in RESUMED if num_processes == 1 else []:
            case, file = CASES[name], tmp_path / name
            begin = torch.load(file) if file.exists() else None
            state = train(SingleDeviceStrategy("cpu", logical_ranks=NUM_RANKS), case, begin, until)
            assert list(state["open"]) == list(range(NUM_RANKS))
            torch.save(state, file)
        if num_processes > 1:
            run_ranks(Path(__file__), num_processes, args=["continue", NUM_RANKS, kind, tmp_path, until]).succeeded()
    for name in RESUMED:
        assert digest(torch.load(tmp_path / name)) == digest(of_one_process(name))


def train_gan(strategy: Any) -> list[Tensor]:
    torch.manual_seed(1)
    module = Gan()
    schedulers = [torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5) for optimizer in module.optimizers]

    def training_step(batch: Tensor) -> Tensor:
        losses = []
        for optimizer, loss in module.losses(batch):
            optimizer.zero_grad()
            strategy.backward(loss)
            strategy.clip_gradients(optimizer, 0.1, "norm")
            strategy.optimizer_step(optimizer)
            losses.append(loss.detach())
        strategy.together("schedulers", lambda: [scheduler.step() for scheduler in schedulers])
        return torch.stack(losses)

    step = strategy.wrap_step(training_step)
    strategy.setup_module(module)
    strategy.setup_optimizers(module.optimizers)
    for batch_idx in range(3):
        outputs = strategy.play_logical_ranks(lambda rank: step(batch_of(rank, batch_idx)))  # noqa: B023
    strategy.teardown()
    assert len(outputs) == len(strategy.logical_ranks)
    return [parameter.detach() for parameter in module.parameters()]


def train_gan_by_hand(num_ranks: int) -> list[Tensor]:
    """Train a copy of the module for each logical rank, step by step together."""
    torch.manual_seed(1)
    modules = [Gan()]
    schedulers = [torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5) for optimizer in modules[0].optimizers]
    modules += [copy.deepcopy(modules[0]) for _ in range(num_ranks - 1)]
    for batch_idx in range(3):
        steps = []
        states: list[Tensor] = []
        for rank, module in enumerate(modules):
            steps.append(module.losses(batch_of(rank, batch_idx)))
            states.append(torch.get_rng_state())
        for idx in range(2):
            gradients = []
            for rank, step in enumerate(steps):
                torch.set_rng_state(states[rank])
                optimizer, loss = next(step)
                states[rank] = torch.get_rng_state()
                optimizer.zero_grad()
                loss.backward()
                own = [parameter for group in optimizer.param_groups for parameter in group["params"]]
                gradients.append([parameter.grad for parameter in own])
            means = tree_reduce(gradients, op="mean")
            for module in modules:
                optimizer = module.optimizers[idx]
                optimizer.param_groups[0]["lr"] = modules[0].optimizers[idx].param_groups[0]["lr"]
                own = [parameter for group in optimizer.param_groups for parameter in group["params"]]
                for parameter, mean in zip(own, means, strict=True):
                    parameter.grad = mean.clone()
                clip(own, 0.1)
                optimizer.step()
        for scheduler in schedulers:
            scheduler.step()
    return [parameter.detach() for parameter in modules[0].parameters()]


def train_by_closures(strategy: Any) -> list[Any]:
    """Let LBFGS evaluate the loss of all logical ranks, as often as its line search decides."""
    torch.manual_seed(1)
    module = ByClosures()
    step = strategy.wrap_step(lambda batch_idx, rank: optimizer.step(closure=partial(evaluate, batch_idx, rank)))

    def evaluate(batch_idx: int, rank: int) -> Tensor:
        optimizer.zero_grad()
        loss = module.loss(rank, batch_idx)
        strategy.backward(loss)
        return loss

    strategy.setup_module(module)
    (optimizer,) = strategy.setup_optimizers([lbfgs(module)])
    found: list[Any] = []
    for batch_idx in range(3):
        losses = strategy.play_logical_ranks(lambda rank: step(batch_idx, rank))  # noqa: B023
        assert len(set(map(float, losses))) == 1
        found.append(losses[0].detach())
    strategy.teardown()
    return [*found, *(parameter.detach() for parameter in module.parameters())]


def train_by_closures_by_hand(num_ranks: int) -> list[Any]:
    torch.manual_seed(1)
    module = ByClosures()
    optimizer, found, num_evaluations = lbfgs(module), [], 0
    parameters = list(module.parameters())
    for batch_idx in range(3):

        def evaluate() -> Tensor:
            nonlocal num_evaluations
            num_evaluations += 1
            losses = [module.loss(rank, batch_idx) for rank in range(num_ranks)]  # noqa: B023
            means = tree_reduce([torch.autograd.grad(loss, parameters) for loss in losses], op="mean")
            for parameter, mean in zip(parameters, means, strict=True):
                parameter.grad = mean
            return tree_sum([loss.detach() for loss in losses]) / num_ranks

        found.append(optimizer.step(evaluate))
    assert num_evaluations > 9  # several each time
    return [*found, *(parameter.detach() for parameter in parameters)]


class ByClosures(nn.Module):
    automatic_optimization = False

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 4), nn.Dropout(0.2), nn.Tanh(), nn.Linear(4, 1))

    def loss(self, rank: int, batch_idx: int) -> Tensor:
        batch = batch_of(rank, batch_idx)
        return (self.net(batch).squeeze(1) - batch.sum(dim=1)).square().mean()


def lbfgs(module: nn.Module) -> torch.optim.LBFGS:
    return torch.optim.LBFGS(module.parameters(), 0.5, 4, line_search_fn="strong_wolfe")


BY_THEMSELVES = {"gan": (train_gan, train_gan_by_hand), "closures": (train_by_closures, train_by_closures_by_hand)}


@pytest.mark.parametrize("name", BY_THEMSELVES)
def test_steps_that_update_by_themselves_take_turns_in_one_process(name: str) -> None:
    by_strategy, by_hand = BY_THEMSELVES[name]
    found = by_strategy(SingleDeviceStrategy("cpu", logical_ranks=NUM_RANKS))
    assert digest(found) == digest(by_hand(NUM_RANKS))


@pytest.mark.processes
@pytest.mark.parametrize("num_processes", [2, 4])
def test_steps_that_update_by_themselves_average_along_the_tree(num_processes: int) -> None:
    found = run_ranks(Path(__file__), num_processes, args=["gan", NUM_RANKS]).succeeded().named
    for name, (_, by_hand) in BY_THEMSELVES.items():
        assert [one[name] for one in found] == [digest(by_hand(NUM_RANKS))] * num_processes


def playing(module: nn.Module, num_ranks: int = 2, **arguments: Any) -> tuple[SingleDeviceStrategy, torch.optim.SGD]:
    strategy = SingleDeviceStrategy("cpu", logical_ranks=num_ranks, **arguments)
    strategy.setup_module(module)
    (optimizer,) = strategy.setup_optimizers([torch.optim.SGD(module.parameters(), lr=0.5)])
    return strategy, optimizer


def test_each_step_finds_what_it_left_itself() -> None:
    module = nn.Sequential(nn.Linear(1, 1, bias=False), nn.BatchNorm1d(1, affine=False))
    nn.init.ones_(module[0].weight)
    strategy, optimizer = playing(module)
    switches: list[int] = []
    found: dict[int, list[Any]] = {0: [], 1: []}

    def step(rank: int) -> int:
        torch.manual_seed(rank)
        module[1].running_mean.fill_(rank + 1)
        module[0].weight.requires_grad_(rank == 0)
        module[0].weight.requires_grad_()
        if rank == 1:
            torch.set_default_dtype(torch.float64)
        strategy.backward((module[0].weight * (rank + 1)).sum())
        found[rank] += [module[1].running_mean.item(), torch.initial_seed(), torch.get_default_dtype()]
        module[0].weight.grad.mul_(2)  # as who clips by hand
        optimizer.step()
        optimizer.zero_grad()
        found[rank] += [module[0].weight.item(), module[1].running_mean.item()]
        torch.set_default_dtype(torch.float32)
        return rank

    assert strategy.play_logical_ranks(step, switches.append) == [0, 1]
    assert found == {0: [1, 0, torch.float32, -0.5, 1], 1: [2, 1, torch.float64, -0.5, 2]}
    assert switches == [0, 1, 0, 1, 0, 1, 0]
    assert module[1].running_mean.item() == 1
    assert strategy.logical_rank is None


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_a_window_that_steps_leave_open_is_each_ones_own(num_ranks: int) -> None:
    module = nn.Linear(1, 1, bias=False)
    strategy, optimizer = playing(module, num_ranks)

    def step(rank: int, is_last: bool) -> None:
        strategy.set_gradient_sync(is_last)
        strategy.backward((module.weight * (rank + 1)).sum())
        strategy.set_gradient_sync(True)
        if is_last:
            optimizer.step()

    before = module.weight.item()
    strategy.play_logical_ranks(lambda rank: step(rank, False))
    own = {rank: one["weight"].item() for rank, one in strategy.logical_gradients().items()}
    assert own == {rank: rank + 1 for rank in range(num_ranks)}
    strategy.play_logical_ranks(lambda rank: step(rank, True))
    assert module.weight.item() == before - 0.5 * (3 if num_ranks == 2 else 2)
    assert strategy.logical_gradients() == {}


def test_frozen_parameters_keep_their_window_where_a_step_ends_that_of_others() -> None:
    strategy = SingleDeviceStrategy("cpu", logical_ranks=2)
    module = nn.ParameterList([nn.Parameter(torch.ones(())) for _ in range(2)])
    strategy.setup_module(module)

    def run(working: int, value: float, *, begins: bool = False) -> None:
        module[1 - working].requires_grad_(False)
        for rank in range(2):
            strategy.enter_logical_rank(rank)
            if begins and rank == 0:
                module[working].grad = None
            strategy.backward(module[working] * value * 10**rank)
        strategy.leave_logical_ranks()
        module[1 - working].requires_grad_(True)

    def gradients() -> Any:
        return [
            {name: one.item() for name, one in of_rank.items()} for of_rank in strategy.logical_gradients().values()
        ]

    for _ in range(2):
        strategy.set_gradient_sync(False)
        run(0, 1, begins=True)
        run(1, 2, begins=True)
        assert gradients() == [{"0": 1, "1": 2}, {"0": 10, "1": 20}]
        strategy.set_gradient_sync(True)
        run(0, 3)
        assert module[0].grad.item() == (4 + 40) / 2
        assert [of_rank["1"] for of_rank in gradients()] == [2, 20]
        run(1, 5)
        assert [one.grad.item() for one in module] == [(4 + 40) / 2, (7 + 70) / 2]
        assert gradients() == []


def test_steps_that_update_in_other_orders_are_refused() -> None:
    module = nn.Linear(1, 1)
    strategy, optimizer = playing(module)

    def step(rank: int) -> None:
        strategy.backward(module.weight.sum())
        if rank == 0:
            optimizer.step()

    with pytest.raises(
        RuntimeError, match=r"`updates` must be the same on all logical ranks, in the same order, but got"
    ):
        strategy.play_logical_ranks(step)


@pytest.mark.parametrize("failing", [0, 1])
def test_what_a_step_raises_is_raised(failing: int) -> None:
    module = nn.Linear(1, 1)
    strategy, _ = playing(module)

    def step(rank: int) -> None:
        strategy.backward(module.weight.sum())
        if rank == failing:
            raise LookupError("of a step")
        strategy.backward(module.weight.sum())

    with pytest.raises(LookupError, match="of a step"):
        strategy.play_logical_ranks(step)
    assert threading.active_count() == 1


def test_an_update_before_all_have_computed_is_refused() -> None:
    module = nn.Linear(1, 1)
    strategy, optimizer = playing(module)
    strategy.enter_logical_rank(0)
    strategy.backward(module.weight.sum())
    with pytest.raises(RuntimeError, match=r"`optimizer\.step` must be called after `leave_logical_ranks`, but got"):
        optimizer.step()
    strategy.teardown()
    optimizer.step()


def test_a_scale_that_each_update_changes_is_refused() -> None:
    message = "`precision` must be another than '16-mixed' where steps update by themselves"
    module = nn.Linear(1, 1)
    strategy, _ = playing(module, precision="16-mixed")
    with pytest.raises(ValueError, match=message):
        strategy.play_logical_ranks(lambda rank: None)
    module.automatic_optimization = False  # type: ignore[assignment]
    with pytest.raises(ValueError, match=message):
        playing(module, precision="16-mixed")


def test_a_step_that_differentiates_by_itself_is_refused() -> None:
    module = nn.Linear(1, 1)
    strategy, optimizer = playing(module)

    def step(rank: int) -> None:
        module.weight.sum().backward()
        optimizer.step()

    with pytest.raises(
        RuntimeError, match=r"`loss\.backward` must be called by the strategy's `backward` inside a step"
    ):
        strategy.play_logical_ranks(step)


def test_what_an_update_changes_in_gradients_and_settings_counts_for_all() -> None:
    module = nn.Linear(1, 1, bias=False)
    strategy, optimizer = playing(module)
    found: list[Any] = []

    def change(optimizer: Any, *_: Any) -> None:
        module.weight.grad.mul_(3)
        optimizer.param_groups[0]["lr"] *= 0.1

    optimizer.register_step_pre_hook(change)

    def step(rank: int) -> None:
        strategy.backward((module.weight * (rank + 1)).sum())
        optimizer.param_groups[0]["lr"] *= 0.5  # each one's own
        optimizer.step()
        found.append((module.weight.grad.item(), optimizer.param_groups[0]["lr"]))

    strategy.play_logical_ranks(step)
    assert found == [(4.5, 0.5 * 0.5 * 0.1)] * 2


@pytest.mark.parametrize("number", [0, 3, 12, -2, True, 2.0])
def test_other_numbers_than_powers_of_two_are_refused(number: Any) -> None:
    with pytest.raises(ValueError, match="`logical_ranks` must be a power of two, but got"):
        SingleDeviceStrategy("cpu", logical_ranks=number)


def test_a_number_that_processes_do_not_divide_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 4, "LOCAL_WORLD_SIZE": 4}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    monkeypatch.setenv("MASTER_PORT", "29500")
    with pytest.raises(
        ValueError, match=r"`logical_ranks` must be a multiple of the number of processes \(4\), but got 2"
    ):
        DDPStrategy(accelerator="cpu", logical_ranks=2)


@pytest.mark.parametrize(
    "arguments", [{"comm_hook": lambda state, bucket: None}, {"static_graph": True}, {"broadcast_buffers": False}]
)
def test_arguments_that_contradict_logical_ranks_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"`{next(iter(arguments))}` must be left out with logical_ranks, but got"):
        DDPStrategy(accelerator="cpu", logical_ranks=2, **arguments)


@pytest.mark.parametrize("arguments", [{"accumulation": "keep"}, {"cpu_offload": True}])
def test_arguments_that_contradict_sharded_logical_ranks_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"`{next(iter(arguments))}` must be left out with logical_ranks, but got"):
        ShardedStrategy(accelerator="cpu", logical_ranks=2, **arguments)


class ByHand(nn.Linear):
    automatic_optimization = False


@pytest.mark.parametrize(
    ("module", "rule"),
    [
        (nn.Linear(2, 2).bfloat16(), r"`parameters` must be in single or double precision: .* `?'weight in torch\.bf"),
        (ByHand(2, 2), r"`automatic_optimization` must be True \(or left out\): steps cannot take turns"),
        (nn.Sequential(nn.SyncBatchNorm(3)), "`module` must be without SyncBatchNorm"),
    ],
)
def test_modules_whose_sharded_steps_would_differ_are_refused(module: nn.Module, rule: str) -> None:
    strategy = ShardedStrategy(accelerator="cpu", devices=1, logical_ranks=2)
    strategy.connect()
    with pytest.raises(ValueError, match=rule):
        strategy.setup_module(module)


def test_optimizers_whose_updates_depend_on_shards_are_refused() -> None:
    strategy, module = ShardedStrategy(accelerator="cpu", devices=1, logical_ranks=2), nn.Linear(2, 2)
    strategy.connect()
    strategy.setup_module(module)
    with pytest.raises(ValueError, match=r"`optimizer` must be one that updates each element by itself, .*'Adafactor'"):
        strategy.setup_optimizers([torch.optim.Adafactor(module.parameters())])
    joint: Any = torch.optim.SGD([module.bias])  # made of others, as `JointOptimizer` is
    joint.optimizers = (torch.optim.AdamW([module.bias]), torch.optim.Muon([module.weight]))
    with pytest.raises(ValueError, match=r"`optimizer` must be one that updates each element by itself, .*'Muon'"):
        strategy.setup_optimizers([joint])
    with pytest.raises(ValueError, match="`fused` must be left out with logical_ranks"):
        strategy.setup_optimizers([torch.optim.AdamW(module.parameters(), fused=True)])
    strategy.teardown()


@pytest.mark.parametrize(
    ("module", "rule"),
    [
        (nn.Sequential(nn.SyncBatchNorm(3)), "without SyncBatchNorm"),
        (nn.Sequential(nn.Embedding(3, 2, sparse=True)), "without sparse gradients"),
    ],
)
def test_modules_that_depend_on_processes_are_refused(module: nn.Module, rule: str) -> None:
    with pytest.raises(ValueError, match=f"`module` must be {rule}"):
        SingleDeviceStrategy("cpu", logical_ranks=2).setup_module(module)


def test_logical_ranks_are_entered_in_their_order_and_differentiate_once() -> None:
    strategy = SingleDeviceStrategy("cpu", logical_ranks=4)
    module = nn.Linear(1, 1)
    strategy.setup_module(module)
    assert (strategy.num_logical_ranks, strategy.logical_ranks, strategy.logical_rank) == (4, range(4), None)
    with pytest.raises(RuntimeError, match=r"`backward` must be called once for each logical rank, after `enter_"):
        strategy.backward(module(torch.ones(1)).sum())
    for index in (1, 4):
        with pytest.raises(RuntimeError, match=r"`index` must be one of \[0, 1, 2, 3\], in their order, but got"):
            strategy.enter_logical_rank(index)
    for index in range(4):
        strategy.enter_logical_rank(index)
        assert strategy.logical_rank == index
        strategy.backward(module(torch.ones(1)).sum() * index)
    with pytest.raises(RuntimeError, match="`backward` must be called once for each logical rank"):
        strategy.backward(module(torch.ones(1)).sum())
    strategy.leave_logical_ranks()
    assert strategy.logical_rank is None
    assert module.weight.grad.item() == (0 + 1 + 2 + 3) / 4  # type: ignore[union-attr]


@pytest.mark.parametrize("num_own", [2, 4])
def test_the_last_of_a_process_takes_the_others_along_to_other_processes(num_own: int) -> None:
    ranks, module = LogicalRanks(2 * num_own, 1, 2, "DDPStrategy", list), nn.Linear(1, 1)
    ranks.begin(module)
    assert ranks.ranks == range(num_own, 2 * num_own)
    values = [torch.tensor([[0.1 * 3**index]]) for index in range(num_own)]
    for index, value in enumerate(values):
        ranks.enter(num_own + index)
        if index < num_own - 1:  # the last one's would communicate
            ranks.backward(module(value), Tensor.backward)
    views = [torch.zeros(1), values[-1].clone()]
    ranks.merge([module.bias, module.weight], views)
    assert views[0].item() == num_own - 1  # its own is missing
    assert torch.equal(views[1], tree_sum(values))


def test_a_step_that_is_begun_anew_forgets_the_one_before() -> None:
    strategy = SingleDeviceStrategy("cpu", logical_ranks=2)
    module = nn.Linear(1, 1)
    strategy.setup_module(module)
    for ranks in ((0, 1), (0,), (0, 1)):
        for index in ranks:
            strategy.enter_logical_rank(index)
            if index == 0:
                module.zero_grad()
            strategy.backward(module(torch.ones(1)).sum())
    strategy.leave_logical_ranks()
    assert module.weight.grad.item() == 1  # type: ignore[union-attr]


def test_gradients_that_are_kept_belong_to_each_logical_rank() -> None:
    strategy = SingleDeviceStrategy("cpu", logical_ranks=4)
    module = nn.Linear(1, 1)
    strategy.setup_module(module)
    for _ in range(2):
        for index in range(4):
            strategy.enter_logical_rank(index)
            strategy.backward(module(torch.ones(1)).sum())
        strategy.leave_logical_ranks()
    assert module.weight.grad.item() == 2  # type: ignore[union-attr]


def test_a_strategy_without_logical_ranks_has_its_own_rank_alone() -> None:
    strategy = SingleDeviceStrategy("cpu")
    assert (strategy.num_logical_ranks, strategy.logical_ranks, strategy.logical_rank) == (None, range(1), None)
    with pytest.raises(RuntimeError, match="`logical_ranks` must be the number of logical ranks, but got None"):
        strategy.enter_logical_rank(0)


if __name__ == "__main__":
    torch.set_num_threads(1)
    what, num_ranks, kind, *rest = [*sys.argv[1:], ""]
    of_all = []
    if what == "gan":
        for name, (by_strategy, _) in BY_THEMSELVES.items():
            strategy = DDPStrategy(
                accelerator="cpu", logical_ranks=int(num_ranks), find_unused_parameters=True, timeout=120
            )
            strategy.connect()
            report(name, digest(by_strategy(strategy)))
        sys.exit()
    of_kind = CASES if kind == "ddp" else SHARDED
    if what == "blocks":
        branches = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        replicas = int(num_ranks) // 2
        strategy = ShardedStrategy(
            accelerator="cpu", logical_ranks=int(num_ranks), data_parallel_replicas=replicas, timeout=20
        )
        strategy.connect()
        step = strategy.wrap_step(lambda: branches[strategy.global_rank // replicas](torch.ones(2)).sum())
        strategy.setup_module(branches)
        strategy.enter_logical_rank(strategy.global_rank)
        strategy.backward(step())
        sys.exit()
    for name in of_kind if what == "train" and num_ranks != "8" else RESUMED:
        case, common = CASES[name], {"accelerator": "cpu", "logical_ranks": int(num_ranks), "timeout": 120}
        strategy: Any
        if kind == "ddp":
            strategy = DDPStrategy(**common, **case.arguments)
        else:
            precision = {key: value for key, value in case.arguments.items() if key == "precision"}
            replicas = 2 if os.environ["WORLD_SIZE"] == "4" and case.accumulate > 1 else 1
            strategy = ShardedStrategy(**common, **precision, **SHARDED[name], data_parallel_replicas=replicas)
        strategy.connect()
        if what == "train":
            state = train(strategy, case)
            report(name, digest(state))
            of_all.append(digest([state["optimizer"], state["gradients"]]))
        else:
            file = Path(rest[0], name)
            state = train(strategy, case, torch.load(file), int(rest[1]))
            strategy.barrier()
            if strategy.global_rank == 0:
                torch.save(state, file)
    report("all", of_all)
