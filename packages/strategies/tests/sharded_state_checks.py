"""Checks on several ranks: evaluation, state dicts, and errors."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from itertools import cycle, product
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from sharded_reference import (
    Block,
    Net,
    ParallelNet,
    assert_close,
    batches,
    raises,
    set_up,
    sharded,
    state,
    train,
    whole,
)
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.optim import SGD, Adafactor, AdamW
from torch.utils._python_dispatch import TorchDispatchMode

from camshaft.strategies import SingleDeviceStrategy
from camshaft.strategies.precision import ScaledPrecision
from camshaft.strategies.sharding.state import tensor_like

ARGUMENTS: list[dict[str, Any]] = [{}, {"reshard_after_forward": False}, {"policy": Block}]


class OtherBlock(Block):
    def other(self, x: Tensor) -> Tensor:
        return Block.forward(self, x)


class Branching(Net):
    """A module that enters its blocks in an order of each stage, one of them by a method other than its forward."""

    order: tuple[int, ...] = (0, 1, 2)

    def make_layers(self) -> None:
        super().make_layers()
        self.blocks[0] = OtherBlock(self.size)
        if hasattr(self, "device_mesh"):
            mesh = self.device_mesh["data_parallel_shards"]
            fully_shard([self.blocks[1], self.blocks[2]], mesh=mesh)
            fully_shard(self.blocks[0], mesh=mesh)
            register_fsdp_forward_method(self.blocks[0], "other")

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block_idx in self.order:
            block = self.blocks[block_idx]
            x = block.other(x) if isinstance(block, OtherBlock) else block(x)
        return self.last(x) * self.scale


def evaluate_unevenly(strategy: Any, make: Callable[[], Net] = Net) -> None:
    """Evaluate several numbers of batches in each stage. The first leaves some ranks without any."""
    torch.manual_seed(3)
    module = make()
    step = strategy.wrap_step(module.validation_step)
    set_up(strategy, module)
    single = make()
    single.configure_model()
    single.load_state_dict(state(module))
    num_ranks = strategy.num_data_ranks
    modes = cycle((torch.inference_mode, torch.no_grad, torch.no_grad))  # each number has both, in some stage
    for stage, order in (("on_validation_start", (0, 1, 2)), ("on_test_start", (2, 0, 1, 2)), ("on_predict_start", ())):
        module.order = single.order = order
        getattr(strategy, stage)()
        for num_batches in (1, 2, num_ranks + 1, 2 * num_ranks):
            given = batches(num_batches, size=2)
            own = range(strategy.data_rank, num_batches, num_ranks)
            with next(modes)():
                for batch_idx in own:
                    result = step(given[batch_idx], batch_idx)
                    torch.testing.assert_close(result, single.validation_step(given[batch_idx], 0))
                for _ in range(-(-num_batches // num_ranks) - len(own)):
                    strategy.idle_step()
            assert all(isinstance(parameter, DTensor) for parameter in module.parameters())
    module.order = (0, 1, 2)
    (optimizer,) = strategy.setup_optimizers([SGD(module.parameters(), lr=0.1)])
    strategy.backward(strategy.wrap_step(module.training_step)(batches(1)[0], 0))
    strategy.optimizer_step(optimizer)
    strategy.teardown()


def check_ranks_may_have_different_numbers_of_batches() -> None:
    for arguments in ARGUMENTS:
        evaluate_unevenly(sharded(**arguments))


def check_ranks_follow_whatever_order_blocks_are_entered_in() -> None:
    evaluate_unevenly(sharded(), Branching)


def check_evaluation_begins_with_the_buffers_of_the_first() -> None:
    module = Net()
    strategy = sharded()
    set_up(strategy, module)
    for begin in (strategy.on_validation_start, strategy.on_test_start, strategy.on_predict_start):
        module.offset.fill_(dist.get_rank() + 1)
        begin()
        assert bool((module.offset == 1).all())
    strategy.teardown()


def check_strategies_of_one_shape_share_the_groups_of_their_mesh() -> None:
    meshes = []
    for arguments in ({"tensor_parallel": 2}, {"tensor_parallel": 2}, {}):
        strategy = sharded(**arguments)
        strategy.connect()
        meshes.append(strategy.device_mesh)
        strategy.teardown()
    assert meshes[0] is meshes[1] is not meshes[2]


def check_hooks_may_run_again_but_not_change_anything() -> None:
    module, strategy = Net(), sharded()
    set_up(strategy, module)
    before = dict(module.named_parameters())
    set_up(strategy, module)
    assert strategy.setup_module(module) is not None
    assert all(before[name] is parameter for name, parameter in module.named_parameters())
    assert module.device_mesh is strategy.device_mesh
    strategy.teardown()
    for change, text in (
        (lambda: setattr(module, "new", nn.Linear(1, 1)), "\"module 'new' is new\""),
        (lambda: setattr(module, "last", nn.Linear(6, 5)), "\"module 'last' was replaced\""),
        (lambda: delattr(module, "scale"), "\"parameter 'scale' is gone\""),
    ):
        message = "`parts of the model` must be left as they are"
        with raises(RuntimeError, message, text, "of Net. Do nothing there if"), strategy.model_context(module):
            change()


def check_optimizers_of_parameters_from_before_are_refused() -> None:
    module, strategy = Net(), sharded()
    module.configure_model()
    stale = SGD(module.parameters(), lr=0.1)
    set_up(strategy, module)
    with raises(ValueError, "`parameter` must be a parameter that the sharded Net has", "'scale as it was before'"):
        strategy.setup_optimizers([stale])
    with raises(ValueError, "but got (3,) (tuple) in SGD"):
        strategy.setup_optimizers([SGD([nn.Parameter(torch.zeros(3))], lr=0.1)])
    with raises(RuntimeError, "`module` must be the one that is set up (Net) until `teardown`"):
        strategy.setup_module(Net())
    strategy.teardown()


def check_states_of_any_layout_are_loaded() -> None:
    torch.manual_seed(1)
    module = Net()
    optimizer = train(sharded(), module)
    world = init_device_mesh("cpu", (dist.get_world_size(),))

    def cut(value: Any) -> Any:
        return distribute_tensor(value, world, [Shard(0)]) if isinstance(value, Tensor) and value.dim() else value

    modules = [state(module), {name: cut(value) for name, value in state(module).items()}]
    optimizers = [whole(optimizer.state_dict())]
    cut_state = {
        idx: {name: cut(value) for name, value in item.items()} for idx, item in optimizers[0]["state"].items()
    }
    optimizers.append({**optimizers[0], "state": cut_state})
    one = Net()
    one.configure_model()
    one.load_state_dict(modules[0])
    train(SingleDeviceStrategy("cpu"), one, optimizer_state=whole(optimizers[0]))
    for of_module, of_optimizer in zip(modules, optimizers, strict=True):
        for arguments in ({}, {"cpu_offload": True}, {"tensor_parallel": 2}, {"data_parallel_replicas": 2}):
            ours, strategy = ParallelNet(), sharded(**arguments)
            set_up(strategy, ours)
            with mock.patch.object(DTensor, "full_tensor", side_effect=AssertionError("a tensor is gathered")):
                strategy.load_module_state(ours, of_module)
            assert_close(state(ours), modules[0], 0.0)
            loaded = train(strategy, ours, optimizer_state=of_optimizer)
            assert_close(state(ours), state(one), 1e-5)
            assert all(
                name == "step" or isinstance(value, DTensor)
                for item in loaded.state.values()
                for name, value in item.items()
            )


def check_chunks_are_cut_as_any_other_tensor() -> None:
    num_ranks = dist.get_world_size()
    world = init_device_mesh("cpu", (num_ranks,))
    meshes = [world, *([init_device_mesh("cpu", (2, num_ranks // 2))] if num_ranks > 2 else [])]
    for shape in ((8, 6), (7, 3), (1, 5), (5,), (0, 3), (3, 0), (2, 3, 5)):
        for dtype in (torch.float32, torch.bfloat16, torch.bool, torch.complex64):
            full = torch.arange(torch.Size(shape).numel()).reshape(shape).to(dtype)
            chunks = distribute_tensor(full, world, [Shard(0)])
            kinds = [Replicate(), *map(Shard, range(full.dim()))]
            layouts = [(mesh, cuts) for mesh in meshes for cuts in product(kinds, repeat=mesh.ndim)]
            likes = [distribute_tensor(full, mesh, list(cuts)) for mesh, cuts in layouts]
            for like in (*likes, *([likes[0].full_tensor()] if num_ranks > 1 else [])):
                placed = tensor_like(chunks, like)
                own, expected = (one.to_local() if isinstance(one, DTensor) else one for one in (placed, like))
                assert torch.equal(own, expected), (shape, dtype, like)


on_four_chunks_are_cut_as_any_other_tensor = check_chunks_are_cut_as_any_other_tensor


def check_states_that_do_not_fit_are_refused() -> None:
    module, strategy = Net(), sharded()
    set_up(strategy, module)
    good = state(module)
    for bad, text in (
        ({**good, "nope": torch.zeros(1)}, 'Unexpected key(s) in state_dict: "nope"'),
        ({name: value for name, value in good.items() if name != "scale"}, 'Missing key(s) in state_dict: "scale"'),
        ({**good, "scale": torch.zeros(7)}, "size mismatch for scale"),
    ):
        with raises(RuntimeError, text):
            strategy.load_module_state(module, bad)
    (optimizer,) = strategy.setup_optimizers([AdamW(module.parameters())])
    fewer = AdamW([nn.Parameter(torch.zeros(2))]).state_dict()
    with raises(ValueError, "doesn't match the size of optimizer's group"):
        strategy.load_optimizer_state(optimizer, fewer)
    strategy.teardown()


def check_optimizer_state_of_other_shapes_is_replicated() -> None:
    torch.manual_seed(1)
    one = Net()
    state_of_one = train(SingleDeviceStrategy("cpu"), one, make_optimizer=Adafactor).state_dict()
    ours, strategy = Net(), sharded()
    set_up(strategy, ours)
    strategy.load_module_state(ours, one.state_dict())
    (optimizer,) = strategy.setup_optimizers([Adafactor(ours.parameters())])
    strategy.load_optimizer_state(optimizer, state_of_one)
    parameter = ours.first.weight
    assert isinstance(optimizer.state[parameter]["row_var"], DTensor)
    assert optimizer.state[parameter]["row_var"].placements == (Replicate(),)
    strategy.teardown()


def check_values_are_placed_like_parameters() -> None:
    module, strategy = Net(), sharded()
    set_up(strategy, module)
    value = torch.arange(5.0)
    placed = strategy.place_like(value, module.scale)
    assert isinstance(placed, DTensor) and placed.placements == module.scale.placements
    assert torch.equal(placed.full_tensor(), value)
    again = strategy.place_like(placed, module.offset)
    assert not isinstance(again, DTensor) and torch.equal(again, value)
    strategy.teardown()


def check_overflows_are_agreed_on() -> None:
    strategy = sharded(precision="16-mixed")
    strategy.connect()
    last = strategy.world_size - 1
    assert strategy.precision.agree(torch.tensor(float(strategy.global_rank == last)))
    assert not strategy.precision.agree(torch.tensor(0.0))


class HostReads(TorchDispatchMode):
    """Counts the values that are read on the host."""

    count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += function is torch.ops.aten._local_scalar_dense.default
        return function(*args, **(kwargs or {}))


def check_whether_any_rank_overflowed_is_read_once_per_update() -> None:
    strategy, module = sharded(precision=ScaledPrecision("cpu", init_scale=2.0**8)), Net()
    step = strategy.wrap_step(module.training_step)
    set_up(strategy, module)
    (optimizer,) = strategy.setup_optimizers([SGD(module.parameters(), lr=0.05)])
    before = state(module)
    for factor, is_skipped in ((1.0, False), (1e38, True), (1.0, False)):
        inputs, targets = batches(1)[0]
        if strategy.global_rank:
            targets = targets * factor
        strategy.backward(step((inputs, targets), 0))
        with HostReads() as reads:
            strategy.unscale_gradients(optimizer)
            strategy.optimizer_step(optimizer)
        assert reads.count == 1, reads.count
        assert strategy.has_skipped_step == is_skipped
        changed = [name for name, value in state(module).items() if not torch.equal(value, before[name])]
        assert bool(changed) != is_skipped
        before = state(module)
        optimizer.zero_grad()
    strategy.teardown()


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(512, 512, bias=False), nn.ReLU(), nn.Linear(512, 512, bias=False))


class Backbone(nn.Module):
    """A model whose blocks are attributes."""

    def __init__(self, make: Callable[[], nn.Module] = Residual) -> None:
        super().__init__()
        self.first, self.second, self.third = make(), make(), make()


class Model(nn.Module):
    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        self.backbone, self.head = backbone, nn.Linear(512, 10, bias=False)


def check_a_large_model_in_one_unit_is_warned_of() -> None:
    def warned(backbone: nn.Module, **arguments: Any) -> list[str]:
        strategy = sharded(**arguments)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            strategy.connect()
            strategy.setup_module(Model(backbone))
        strategy.teardown()
        return [str(one.message) for one in caught]

    begin = (
        "The default `policy` of ShardedStrategy leaves 1,572,864 of 1,577,984 parameters of Model in one unit, which"
    )
    for backbone, suggested in (
        (Backbone(), "Residual"),
        (nn.Sequential(*(nn.Linear(512, 512, bias=False) for _ in range(6))), "196608"),
        (nn.Linear(512, 3072, bias=False), None),  # nothing to divide
        (nn.ModuleList(Residual() for _ in range(3)), None),
        (Backbone(lambda: nn.Linear(512, 512, bias=False)), None),  # not large
    ):
        found = warned(backbone)
        if dist.get_rank() or suggested is None:
            assert found == [], found
        else:
            assert found == [
                f"{begin} every rank gathers as a whole. Pass policy={suggested}, or other classes of blocks."
            ]
    assert warned(Backbone(), policy=nn.Linear) == []


def on_four_ranks_ranks_may_have_different_numbers_of_batches() -> None:
    for arguments in ({"data_parallel_replicas": 2}, {"reshard_after_forward": 2}, {"policy": Block}):
        evaluate_unevenly(sharded(**arguments))
    for arguments in ({"tensor_parallel": 2}, {"tensor_parallel": 2, "data_parallel_replicas": 2}):
        evaluate_unevenly(sharded(**arguments), ParallelNet)
