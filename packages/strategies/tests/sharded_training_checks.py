"""Checks on several ranks: sharded training equals training on one device."""

from __future__ import annotations

import tempfile
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from sharded_reference import (
    Block,
    Net,
    ParallelNet,
    ShardingNet,
    WhollyShardingNet,
    assert_close,
    batches,
    check_equals_one_device,
    raises,
    set_up,
    sharded,
    state,
    train,
    whole,
)
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.optim import SGD, AdamW
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import CheckpointPolicy

from camshaft.strategies import SingleDeviceStrategy
from camshaft.strategies.precision import ScaledPrecision

GENTLE = {"make_optimizer": SGD, "lr": 0.05}


def check_weights_begin_and_end_as_on_one_device() -> None:
    check_equals_one_device({})


def check_gradients_accumulate() -> None:
    check_equals_one_device({}, {"accumulate": 2})


def check_clipping_by_norm_and_value() -> None:
    check_equals_one_device({}, {"clip": (0.1, "norm"), **GENTLE})
    check_equals_one_device({}, {"clip": (0.01, "value"), **GENTLE})


def check_policies_of_each_kind() -> None:
    def sharded_names(policy: Any) -> list[str]:
        module = check_equals_one_device({"policy": policy})
        return [name for name, part in module.named_modules() if isinstance(part, FSDPModule)]

    blocks = ["blocks.0", "blocks.1", "blocks.2"]
    assert sharded_names(None) == ["", "first", *blocks, "last"]
    assert sharded_names(Block) == ["", *blocks]
    assert sharded_names([Block, nn.LayerNorm]) == [
        "",
        *[name for block in blocks for name in (block, f"{block}.norm")],
    ]
    assert sharded_names(lambda module: isinstance(module, nn.Linear) and module.out_features == 5) == ["", "last"]
    assert sharded_names(200) == ["", *blocks]


def check_blocks_may_stay_whole_until_backward() -> None:
    check_equals_one_device({"reshard_after_forward": False})


class Wrapper(Net):
    """A module with parameters in one child only."""

    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.net: Net | None = None

    def configure_model(self) -> None:
        if self.net is None:
            self.net = Net()
            self.net.configure_model()
            self.drawn = self.net.drawn

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


def check_a_wrapped_model_is_a_block_only_if_that_changes_anything() -> None:
    def names(**arguments: Any) -> list[str]:
        module = Wrapper()
        set_up(sharded(**arguments), module)
        return [name for name, part in module.named_modules() if isinstance(part, FSDPModule)]

    blocks = [f"net.blocks.{block_idx}" for block_idx in range(3)]
    assert names() == ["", *blocks]
    assert names(precision="bf16-mixed") == names(compile=True) == ["", "net", *blocks]
    check_equals_one_device({}, make=Wrapper)
    check_equals_one_device({"precision": lambda: "bf16-mixed"}, GENTLE, make=Wrapper, tolerance=2e-2)


def check_by_default_only_a_block_that_is_all_of_the_model_stays_whole_until_backward() -> None:
    inputs, targets = batches(1)[0]
    for arguments, stay in (({}, {"net.scale", "net.shift"}), ({"reshard_after_forward": True}, set())):
        strategy, module = sharded(policy=(Net, Block, nn.Linear), **arguments), Wrapper()
        set_up(strategy, module)
        loss = strategy.wrap_step(lambda net: F.mse_loss(net(inputs), targets))(module.net)
        whole = {name for name, parameter in module.named_parameters() if not isinstance(parameter, DTensor)}
        assert whole == stay, whole
        strategy.backward(loss)
        assert all(isinstance(parameter, DTensor) for parameter in module.parameters())
        strategy.teardown()


def check_activations_are_computed_again() -> None:
    num_calls = []

    class Counting(Block):
        def forward(self, x: Tensor) -> Tensor:
            num_calls.append(1)
            return super().forward(x)

    class CountingNet(Net):
        def make_layers(self) -> None:
            super().make_layers()
            self.blocks = nn.ModuleList(Counting(self.size) for _ in range(3))

    check_equals_one_device({"activation_checkpointing": Block, "policy": Block}, {"num_steps": 1}, make=CountingNet)
    assert len(num_calls) == 3 + 2 * 3
    check_equals_one_device({"activation_checkpointing": 100, "policy": nn.Linear})


class Calls(TorchDispatchMode):
    """Counts the calls of an operation."""

    def __init__(self, operation: Any) -> None:
        super().__init__()
        self.operation, self.count = operation, 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += function is self.operation
        return function(*args, **(kwargs or {}))


def check_operations_of_recomputed_blocks_may_be_saved() -> None:
    linear = torch.ops.aten.addmm.default

    def policy(context: Any, operation: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        return CheckpointPolicy.MUST_SAVE if operation is linear else CheckpointPolicy.PREFER_RECOMPUTE

    for saved, num_calls in ((None, 8 + 3), ([linear], 8), (policy, 8), ([torch.ops.aten.gelu.default], 8 + 3)):
        arguments = {"activation_checkpointing": Block, "saved_operations": saved}
        check_equals_one_device(arguments)
        strategy, module = sharded(**arguments), Net()
        set_up(strategy, module)
        with Calls(linear) as calls:
            strategy.backward(strategy.wrap_step(module.training_step)(batches(1)[0], 0))
        strategy.teardown()
        assert calls.count == num_calls, (saved, calls.count)  # the last of a block's two is never needed


def check_blocks_are_gathered_ahead() -> None:
    inputs, _ = batches(1)[0]
    for prefetch, num_gathered in ((0, [2, 3, 4, 5, 6]), (1, [3, 4, 5, 6, 6]), (3, [5, 6, 6, 6, 6])):
        check_equals_one_device({"prefetch": prefetch}, {"accumulate": 2})
        check_equals_one_device({"prefetch": prefetch, "policy": [Block, nn.LayerNorm]})
        strategy, module, gathered = sharded(prefetch=prefetch), Net(), []
        set_up(strategy, module)
        with Calls(torch.ops.c10d._allgather_base_.default) as calls:
            for part in (module.first, *module.blocks, module.last):
                part.register_forward_pre_hook(lambda *_, to=gathered, calls=calls: to.append(calls.count))
            strategy.wrap_step(module)(inputs)
        assert gathered == num_gathered, (prefetch, gathered)  # the module's own parameters first
        strategy.teardown()


class Skipping(Net):
    """A module whose evaluation leaves out a block."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block_idx, block in enumerate(self.blocks):
            x = block(x) if self.training or block_idx != 1 else x
        return self.last(x) * self.scale + self.shift + self.offset


def check_a_block_that_was_gathered_ahead_for_nothing_is_gathered_again() -> None:
    module, strategy = Skipping(), sharded(prefetch=2)
    set_up(strategy, module)
    inputs, _ = batches(1)[0]
    module.eval()
    step = strategy.wrap_step(module)
    with torch.no_grad():
        step(inputs)
        for parameter in module.parameters():
            parameter.mul_(2)
    whole_module = Skipping()
    set_up(SingleDeviceStrategy("cpu"), whole_module)
    whole_module.load_state_dict(state(module))
    module.train()
    with torch.no_grad():
        torch.testing.assert_close(step(inputs), whole_module(inputs))
    strategy.teardown()


def check_blocks_are_compiled() -> None:
    torch._dynamo.reset()
    compiled = []

    def backend(graph: Any, inputs: Any) -> Any:
        compiled.append(graph)
        return graph

    check_equals_one_device({"compile": {"backend": backend}, "policy": Block})
    assert compiled
    check_equals_one_device({"compile": {"backend": "aot_eager"}, "activation_checkpointing": Block})
    strategy = sharded(compile=True, policy=10**9)
    with raises(ValueError, "`compile` must be False for a module without sharded blocks"):
        set_up(strategy, Net())


def check_precisions() -> None:
    for make_precision, dtype, tolerance in (
        (lambda: "64-true", torch.float64, 1e-10),
        (lambda: "bf16-true", torch.bfloat16, 3e-2),
        (lambda: "bf16-mixed", torch.float32, 2e-2),
        # at a scale at which half of a batch overflows as little as all of it
        (lambda: ScaledPrecision("cpu", init_scale=2.0**8), torch.float32, 1e-3),
    ):
        training = {"clip": (0.5, "norm"), **GENTLE}
        module = check_equals_one_device({"precision": make_precision}, training, tolerance=tolerance)
        assert {parameter.dtype for parameter in module.parameters()} == {dtype}


def check_a_mixed_precision_policy_is_of_blocks() -> None:
    dtypes = []

    class Looking(Net):
        def forward(self, x: Tensor) -> Tensor:
            dtypes.append((x.dtype, self.last.weight.dtype))
            return super().forward(x)

        def make_layers(self) -> None:
            super().make_layers()
            self.blocks[0].register_forward_hook(lambda block, inputs, output: dtypes.append(inputs[0].dtype))

    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32, output_dtype=torch.float32)
    check_equals_one_device({"mixed_precision": policy}, GENTLE, make=Looking, tolerance=2e-2)
    assert dtypes[-2:] == [(torch.float32, torch.float32), torch.bfloat16]


def check_cpu_offload_changes_nothing_on_cpus() -> None:
    check_equals_one_device({"cpu_offload": True}, {"clip": (0.1, "norm"), **GENTLE})


def check_layers_are_split_over_processes() -> None:
    for clip in ((0.1, "norm"), (0.02, "value")):
        training = {"clip": clip, "accumulate": 2, **GENTLE}
        module = check_equals_one_device({"tensor_parallel": 2}, training, make=ParallelNet)
        check_equals_one_device({"tensor_parallel": 2, "policy": Block}, training, make=ParallelNet)
    assert module.blocks[0].up.weight.device_mesh.mesh_dim_names == ("data_parallel_shards", "tensor_parallel")


def check_modules_may_shard_themselves() -> None:
    check_equals_one_device({}, make=ShardingNet)
    check_equals_one_device({}, make=WhollyShardingNet)
    check_equals_one_device({"tensor_parallel": 2}, make=ShardingNet)


def check_parameters_may_be_initialised_after_they_are_sharded() -> None:
    class Late(WhollyShardingNet):
        def configure_model(self) -> None:
            if self.blocks is not None:
                return
            super().configure_model()
            with torch.no_grad():
                for name, parameter in self.named_parameters():
                    if parameter.ndim == 2:
                        nn.init.orthogonal_(parameter)
                    elif name != "scale":
                        parameter.data.normal_()
                        parameter[0] = 3
                        parameter.add_(1)
                self.first.weight.mul_(self.last.weight.sum())
                self.double().float()

    for arguments in ({}, {"tensor_parallel": 2}):
        check_equals_one_device(arguments, {"lr": 1e-7}, make=Late)


def check_modules_may_be_emptied_and_initialised() -> None:
    class Emptied(ShardingNet):
        def configure_model(self) -> None:
            if self.blocks is None:
                with torch.device("meta"):
                    self.make_layers()
                self.to_empty(device="cpu")
                for parameter in self.parameters():
                    nn.init.normal_(parameter)
                self.offset.fill_(1)
                self.drawn = torch.rand(3)

    check_equals_one_device({}, {"lr": 1e-6}, make=Emptied)


def check_parameters_may_be_distributed_one_by_one() -> None:
    class Distributing(Net):
        def make_layers(self) -> None:
            super().make_layers()
            shift = torch.randn(5)
            if hasattr(self, "device_mesh"):
                shift = distribute_tensor(shift, self.device_mesh["tensor_parallel"], [Shard(0)])
            self.shift = nn.Parameter(shift)

        def forward(self, x: Tensor) -> Tensor:
            shift = self.shift
            full = shift.full_tensor() if hasattr(shift, "full_tensor") else shift
            return super().forward(x) * 0 + full

    torch.manual_seed(2)
    one = Distributing()
    set_up(SingleDeviceStrategy("cpu"), one)
    torch.manual_seed(2)
    ours = Distributing()
    set_up(sharded(tensor_parallel=2), ours)
    assert torch.equal(state(ours)["shift"], state(one)["shift"])


def check_ranks_that_are_seeded_otherwise_get_the_weights_of_the_first() -> None:
    torch.manual_seed(7)
    first = Net()
    set_up(SingleDeviceStrategy("cpu"), first)
    torch.manual_seed(7 + dist.get_rank())
    before = torch.get_rng_state()
    ours = Net()
    with torch.no_grad():
        ours.scale += dist.get_rank()
    set_up(sharded(), ours)
    for name, value in state(ours).items():
        assert torch.equal(value, first.state_dict()[name]), name
    assert torch.equal(torch.get_rng_state(), before) == (dist.get_rank() > 0)


def check_modules_without_hooks_are_sharded_from_their_values() -> None:
    torch.manual_seed(dist.get_rank())
    module = Net()
    module.configure_model()
    values = [state(module)]
    dist.broadcast_object_list(values)
    strategy = sharded()
    strategy.connect()
    strategy.setup_module(module)
    assert all(torch.equal(value, values[0][name]) for name, value in state(module).items())
    module.first.weight.sum()


def check_manual_optimization() -> None:
    class Manual(Net):
        def training_step(self, batch: Any, batch_idx: int) -> None:
            for _ in range(2):
                loss = super().training_step(batch, batch_idx)
                self.optimizer.zero_grad()
                self.strategy.backward(loss)
                self.optimizer.step()

    class OneParameter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4, 5))

        def configure_model(self) -> None:
            pass

        def forward(self, x: Tensor) -> Tensor:
            return x @ self.weight

    class ManualOneParameter(OneParameter, Manual):
        def __init__(self) -> None:
            OneParameter.__init__(self)

    def run(strategy: Any, module: Any) -> dict[str, Tensor]:
        step = strategy.wrap_step(module.training_step)
        set_up(strategy, module)
        (optimizer,) = strategy.setup_optimizers([SGD(module.parameters(), lr=0.1)])
        vars(module).update(strategy=strategy, optimizer=optimizer)
        share = slice(strategy.data_rank, None, strategy.num_data_ranks)
        for x, y in batches(3):
            step((x[share], y[share]), 0)
        strategy.teardown()
        return state(module)

    for make in (Manual, ManualOneParameter):
        torch.manual_seed(3)
        expected = run(SingleDeviceStrategy("cpu"), make())
        for arguments in ({}, {"reshard_after_forward": False}, {"policy": nn.Linear} if make is Manual else {}):
            torch.manual_seed(3)
            for name, value in run(sharded(**arguments), make()).items():
                torch.testing.assert_close(value, expected[name], rtol=1e-5, atol=1e-5)


def check_training_goes_on_after_a_step_that_failed() -> None:
    class Failing(Net):
        fails = True

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            loss = super().training_step(batch, batch_idx)
            if self.fails:
                raise ValueError("no")
            return loss

    torch.manual_seed(1)
    one = Net()
    train(SingleDeviceStrategy("cpu"), one)
    torch.manual_seed(1)
    module = Failing()
    strategy = sharded()
    with raises(ValueError, "no"):
        train(strategy, module)
    strategy.teardown()
    module.fails = False
    train(strategy, module)
    for name, value in state(module).items():
        torch.testing.assert_close(value, one.state_dict()[name], rtol=1e-5, atol=1e-5)
    strategy.teardown()


def check_a_blocks_parameter_that_is_used_from_outside_is_explained() -> None:
    class Reaching(Net):
        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.linear(x, self.first.weight)

    strategy, module = sharded(), Reaching()
    step = strategy.wrap_step(module.training_step)
    set_up(strategy, module)
    with raises(RuntimeError, "register_fsdp_forward_method"):
        step(batches(1)[0], 0)
    strategy.teardown()


def on_four_ranks_replicas_of_sharded_models() -> None:
    check_equals_one_device({"data_parallel_replicas": 2}, {"accumulate": 2, "clip": (0.1, "norm"), **GENTLE})
    check_equals_one_device({"data_parallel_replicas": 2, "policy": Block}, {"clip": (0.01, "value"), **GENTLE})
    module = check_equals_one_device({"data_parallel_replicas": 4, "reshard_after_forward": False})
    assert module.scale.device_mesh.mesh_dim_names == ("data_parallel_replicas", "data_parallel_shards")


def on_four_ranks_blocks_may_stay_sharded_over_fewer() -> None:
    check_equals_one_device({"reshard_after_forward": 2})


def on_four_ranks_layers_are_split_and_sharded() -> None:
    training = {"clip": (0.1, "norm"), "accumulate": 2, **GENTLE}
    for arguments in ({"tensor_parallel": 2}, {"tensor_parallel": 2, "data_parallel_replicas": 2}):
        check_equals_one_device(arguments, training, make=ParallelNet)
        check_equals_one_device(arguments, {"clip": (0.02, "value"), **GENTLE}, make=ParallelNet)
    check_equals_one_device({"tensor_parallel": 4}, training, make=lambda: ParallelNet(size=8))
    check_equals_one_device({"tensor_parallel": 2}, training, make=ShardingNet)


class ContextNet(ParallelNet):
    """A module whose steps divide each batch over a further dimension of the mesh."""

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        mesh = getattr(self, "device_mesh", None)
        if mesh is None:
            return super().training_step(batch, batch_idx)
        own = slice(mesh["context_parallel"].get_local_rank(), None, mesh["context_parallel"].size())
        return super().training_step((batch[0][own], batch[1][own]), batch_idx)


def on_four_ranks_batches_are_shared_out_over_data_dimensions_alone() -> None:
    training = {"clip": (0.1, "norm"), "accumulate": 2, **GENTLE}
    context = {"mesh_dimensions": {"context_parallel": 2}}
    for arguments in (
        {"accumulation": "keep"},
        {"data_parallel_replicas": 2},
        {"tensor_parallel": 2},
        {"reshard_after_forward": 2},
    ):
        check_equals_one_device({**context, **arguments}, training, make=ContextNet)
    strategy = sharded(mesh_dimensions={"context_parallel": 2, "other": 1})
    strategy.connect()
    names = ("data_parallel_replicas", "data_parallel_shards", "context_parallel", "other", "tensor_parallel")
    assert strategy.device_mesh.mesh_dim_names == names
    assert (strategy.data_rank, strategy.num_data_ranks) == (dist.get_rank() // 2, 2)
    assert strategy.device_mesh["parameter_shards"].size() == 4


class Experts(nn.Module):
    """Layers of which each rank along a dimension of the mesh computes some."""

    def __init__(self, size: int, mesh: Any) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(size)
        weight = torch.randn(4, size, size) * 0.3
        self.weight = nn.Parameter(weight if mesh is None else distribute_tensor(weight, mesh, [Shard(0)]))

    def forward(self, x: Tensor) -> Tensor:
        x, weight = self.norm(x), self.weight
        if not isinstance(weight, DTensor):
            return torch.tanh(x @ weight).sum(0)
        mesh = weight.device_mesh
        x = DTensor.from_local(x, mesh, [Replicate()], run_check=False).to_local(grad_placements=[Partial()])
        outputs = torch.tanh(x @ weight.to_local()).sum(0)
        return DTensor.from_local(outputs, mesh, [Partial()], run_check=False).full_tensor()


class ExpertNet(Net):
    def make_layers(self) -> None:
        super().make_layers()
        mesh = getattr(self, "device_mesh", None)
        self.blocks[1] = Experts(self.size, None if mesh is None else mesh["expert_parallel"])


def on_four_ranks_experts_are_shared_out_over_a_dimension_of_their_own() -> None:
    training = {"clip": (0.1, "norm"), "accumulate": 2, **GENTLE}
    experts = {"mesh_dimensions": {"expert_parallel": 2}}
    for arguments in ({"data_parallel_replicas": 2}, {"accumulation": "keep_all"}, {"policy": Experts}):
        module = check_equals_one_device({**experts, **arguments}, training, make=ExpertNet)
    assert module.blocks[1].weight.device_mesh.mesh_dim_names == ("data_parallel_shards", "expert_parallel")
    assert module.first.weight.device_mesh.mesh_dim_names == ("parameter_shards",)


def on_four_ranks_models_on_further_dimensions_are_saved_and_loaded() -> None:
    folders = [tempfile.mkdtemp() if dist.get_rank() == 0 else ""]
    dist.broadcast_object_list(folders)
    path = f"{folders[0]}/experts.ckpt"
    strategy, module = sharded(mesh_dimensions={"expert_parallel": 2}), ExpertNet()
    optimizer = train(strategy, module)
    strategy.save_checkpoint({"state_dict": module.state_dict(), "optimizer": optimizer.state_dict()}, path)
    for arguments in ({"mesh_dimensions": {"expert_parallel": 4}}, {"mesh_dimensions": {"expert_parallel": 1}}):
        other, loaded = sharded(**arguments), ExpertNet()
        set_up(other, loaded)
        checkpoint = other.load_checkpoint(path)
        other.load_module_state(loaded, checkpoint["state_dict"])
        assert_close(state(loaded), state(module), 0.0)
        (other_optimizer,) = other.setup_optimizers([AdamW(loaded.parameters())])
        other.load_optimizer_state(other_optimizer, checkpoint["optimizer"])
        moments = whole(other_optimizer.state_dict()["state"]), whole(optimizer.state_dict()["state"])
        for one, other_one in zip(*(list(values.values()) for values in moments), strict=True):
            assert_close(one, other_one, 0.0)
        other.teardown()
