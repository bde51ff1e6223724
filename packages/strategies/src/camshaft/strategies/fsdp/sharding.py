"""Applying `fully_shard` to what a module did not shard itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from attrs import frozen
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard

from camshaft.hooks_core.messages import must_be
from camshaft.strategies.fsdp.activation_checkpointing import checkpoint_activations, compile_forward
from camshaft.strategies.fsdp.sharding_policy import Policy, blocks_of, check_policy, shardable
from camshaft.strategies.fsdp.unchanged_model import class_name


@frozen(kw_only=True)
class Sharding:
    """How a module is sharded; the arguments of `ShardedStrategy` of the same names.

    Raises:
        TypeError: If an argument is of another kind.
        ValueError: If a policy or number makes no sense.
    """

    where: str
    num_shards: int
    tensor_parallel: int
    policy: Policy | None
    reshard_after_forward: bool | int | None
    mixed_precision: MixedPrecisionPolicy | None
    cpu_offload: bool
    activation_checkpointing: Policy | None
    compile: bool | Mapping[str, Any]

    def __attrs_post_init__(self) -> None:
        check_policy("policy", self.policy, self.where)
        check_policy("activation_checkpointing", self.activation_checkpointing, self.where)
        if not isinstance(self.mixed_precision, MixedPrecisionPolicy | None):
            rule, action = "a MixedPrecisionPolicy or None", "Pass one of torch.distributed.fsdp, or leave it out."
            raise TypeError(must_be("mixed_precision", rule, self.mixed_precision, self.where, action))
        if not isinstance(self.cpu_offload, bool):
            raise TypeError(must_be("cpu_offload", "a bool", self.cpu_offload, self.where, "Pass True or False."))
        if not isinstance(self.compile, bool | Mapping):
            rule = "a bool or a dictionary of arguments of torch.compile"
            raise TypeError(must_be("compile", rule, self.compile, self.where, "Pass one of these."))
        self._check_reshard()

    def apply(self, module: nn.Module, mesh: DeviceMesh, autocast_dtype: torch.dtype | None) -> None:
        """Shard what is not sharded, in place: the blocks that the policy chooses, and around them the module itself.

        Args:
            module: The module. Its parameters may be on the meta device.
            mesh: For `fully_shard`.
            autocast_dtype: What steps are autocast to, if they are.

        Raises:
            ValueError: If a policy's classes do not occur, or there is nothing to compile.
        """
        if self.activation_checkpointing is not None:
            checkpoint_activations(blocks_of(module, self.activation_checkpointing, "activation_checkpointing"))
        of_blocks = self._mixed_precision(autocast_dtype)
        offload = CPUOffloadPolicy() if self.cpu_offload and mesh.device_type != "cpu" else OffloadPolicy()
        num_parameters = len(list(module.parameters()))
        needs_blocks = self.policy is not None or self.compile is not False or of_blocks.param_dtype is not None
        for block in shardable(module, blocks_of(module, self.policy)):
            reshard = self.reshard_after_forward
            if reshard is None:
                reshard = len(list(block.parameters())) < num_parameters
                if not reshard and not needs_blocks:
                    continue  # for the module around it to hold: a block costs time of its own at each step
            fully_shard(
                block,
                mesh=mesh,
                reshard_after_forward=reshard,
                mp_policy=of_blocks,
                offload_policy=offload,
            )
        if not isinstance(module, FSDPModule):
            # Its forward is a step: what that takes and returns, such as targets and losses, is not to be cast.
            of_root = replace(of_blocks, cast_forward_inputs=False, output_dtype=None)
            fully_shard(module, mesh=mesh, mp_policy=of_root, offload_policy=offload)
        if self.compile is not False:
            blocks = [part for part in module.modules() if isinstance(part, FSDPModule) and part is not module]
            if not blocks:
                rule, action = "False for a module without sharded blocks", "Pass a policy that chooses some."
                raise ValueError(must_be("compile", rule, self.compile, class_name(module), action))
            compile_forward(blocks, {} if self.compile is True else self.compile)

    def _mixed_precision(self, autocast_dtype: torch.dtype | None) -> MixedPrecisionPolicy:
        if self.mixed_precision is not None:
            return self.mixed_precision
        if autocast_dtype is None:
            return MixedPrecisionPolicy()
        # a block's inputs have the format of its parameters, as operations need that autocast leaves alone
        return MixedPrecisionPolicy(autocast_dtype, torch.float32)

    def _check_reshard(self) -> None:
        value = self.reshard_after_forward
        if value is None or isinstance(value, bool):
            return
        if not isinstance(value, int):
            action = "Pass True, False or a number of processes."
            raise TypeError(must_be("reshard_after_forward", "a bool, an int or None", value, self.where, action))
        if self.tensor_parallel > 1:
            rule = (
                "a bool where tensor_parallel is more than 1: torch cannot reshard such parameters to fewer processes"
            )
            raise ValueError(must_be("reshard_after_forward", rule, value, self.where, "Pass True or False."))
        if value < 2 or self.num_shards % value != 0:
            rule = f"a divisor of the number of shards ({self.num_shards}) above 1"
            raise ValueError(must_be("reshard_after_forward", rule, value, self.where, "Pass such a number, or True."))
