"""Steps of a sharded module: gathering its parameters, also for steps of other ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import count
from types import MethodType
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import _get_default_store  # it has no public name
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor

T = TypeVar("T")

_RUN = "_camshaft_run"
_END = "end"
_runs_begun = count()


class ShardedSteps:
    """The steps of a module that `fully_shard` was applied to.

    A step runs as the module's forward, so that parameters outside of the blocks are whole during it. After an
    evaluation step all are sharded again. The order in which a step enters the blocks is recorded, so that a rank
    without a batch can gather them in the same order. A rank that never had a batch follows rank 0, which has one
    whenever another rank has, and publishes the blocks that it enters in the first step of a stage.

    Args:
        module: The sharded module. Its parameters may have no values yet.

    Attributes:
        module: The module.
        stage: The stage of evaluation, if any. All its steps enter the same blocks in the same order.
        is_training: Whether a training step is running.
    """

    def __init__(self, module: FSDPModule) -> None:
        assert isinstance(module, nn.Module)
        self.module = module
        self.stage = "evaluation"
        self.is_training = False
        self._run: Callable[[Callable[[], Any]], Any] = _forward_method(module)
        self._sharded: list[Any] = [part for part in module.modules() if isinstance(part, FSDPModule)]
        self._blocks = [part for part in self._sharded if part is not module]
        self._in_groups = _in_groups(self._blocks)
        self._enter = [_forward_method(block) for block in self._blocks]
        self._store: Store | None = None
        self._publishes = self._is_publishing = False
        self._orders: dict[str, list[int]] = {}
        self._entered: list[int] | None = None
        self._published: set[str] = set()
        self._is_initialised = self._has_failed = False
        for block_idx, block in enumerate(self._blocks):
            block.register_forward_pre_hook(partial(self._record, block_idx), prepend=True)
            _record_methods(block, partial(self._record, block_idx, block, ()))

    def begin(self, rank: int, world_size: int) -> None:
        """Prepare for a run. Collective.

        The first run gathers every parameter once, so that no memory for it is allocated in inference mode.

        Args:
            rank: This process's rank.
            world_size: Number of ranks.
        """
        # all ranks begin runs in the same order
        self._store = PrefixStore(f"camshaft/steps/{next(_runs_begun)}", _get_default_store())
        self._publishes = rank == 0 and world_size > 1
        self._orders.clear()
        self._published.clear()
        self.stage = "evaluation"
        if self._has_failed:
            self.module.reset_iter_state()
            self._has_failed = False
        if not self._is_initialised:
            with torch.inference_mode(False), torch.no_grad():
                self._run(_no_op)
                for block in self._sharded:
                    block.unshard()
                    block.reshard()
            self._is_initialised = True

    def reshard(self) -> None:
        """Free gathered parameters. Not collective."""
        for part in self._sharded:
            part.reshard()

    def train(self, step: Callable[[], T]) -> T:
        """Run a training step. Collective.

        Its backward may follow it, or be part of it through `differentiate`.
        """
        self.is_training = True
        try:
            return self._run(step)  # type: ignore[no-any-return]
        except BaseException as error:
            self._note_failure(error)
            raise
        finally:
            self.is_training = False

    def evaluate(self, step: Callable[[], T]) -> T:
        """Run an evaluation step. Collective with the steps of other ranks, or their `answer`."""
        self._entered = []
        self._is_publishing = self._publishes and self.stage not in self._published
        try:
            result = self._run(step)
            if self._is_publishing:
                self._publish(_END)
            self._orders[self.stage] = self._entered
        except BaseException as error:
            self._note_failure(error)
            raise
        finally:
            self._entered, self._is_publishing = None, False
            self._published.add(self.stage)
        self.reshard()
        return result  # type: ignore[no-any-return]

    def answer(self) -> None:
        """Gather parameters with the evaluation steps of other ranks. Collective with these."""
        known = self._orders.get(self.stage)
        with torch.no_grad():
            self._run(partial(self._enter_all, self._follow() if known is None else known))
        self.reshard()

    def differentiate(self, loss: Tensor, backward: Callable[[Tensor], None]) -> None:
        """Differentiate a loss, after a step or inside of one, and reduce gradients. Collective."""
        if not self.is_training:
            backward(loss)
            return
        # The loss passes through the module's forward, whose backward hooks reduce its own gradients.
        backward(self._run(lambda: loss))
        self.module.unshard()

    def refresh(self) -> None:
        """Gather updated parameters again for the rest of a training step. Collective."""
        if self.is_training:
            self.module.reshard()
            self.module.unshard()

    def _note_failure(self, error: BaseException) -> None:
        self._has_failed = True
        if "mixed torch.Tensor and DTensor" in str(error):
            error.add_note(
                "A sharded block's parameter is used while its forward is not running. Call the block, register the "
                "method that uses it (torch.distributed.fsdp.register_fsdp_forward_method), or pass a `policy` that "
                "leaves it to the module around it."
            )

    def _record(self, block_idx: int, block: nn.Module, args: tuple[Any, ...]) -> None:
        if self._entered is None:
            return
        if block_idx in self._in_groups and not isinstance(next(block.parameters()), DTensor):
            return  # gathered already, with another module of its group
        if self._is_publishing:
            self._publish(str(block_idx))
        self._entered.append(block_idx)

    def _publish(self, value: str) -> None:
        assert self._store is not None and self._entered is not None
        self._store.set(f"{self.stage}/{len(self._entered)}", value)

    def _follow(self) -> Iterator[int]:
        """Yield the blocks that rank 0 enters, as soon as it does."""
        assert self._store is not None
        order: list[int] = []
        while (value := self._store.get(f"{self.stage}/{len(order)}").decode()) != _END:
            order.append(int(value))
            yield order[-1]
        self._orders[self.stage] = order

    def _enter_all(self, order: Iterable[int]) -> None:
        for block_idx in order:
            if block_idx in self._in_groups:
                self._blocks[block_idx].unshard()
                self._blocks[block_idx].reshard()
            else:
                self._enter[block_idx](_no_op)


def _forward_method(module: Any) -> Callable[[Callable[[], Any]], Any]:
    """Return a function that calls another one as a sharded module's forward."""
    if _RUN not in vars(module):
        vars(module)[_RUN] = _call
        register_fsdp_forward_method(module, _RUN)
    return vars(module)[_RUN]  # type: ignore[no-any-return]


def _call(step: Callable[[], T]) -> T:
    return step()


def _no_op() -> None:
    """Do nothing, as a step of which only the gathering is needed."""


def _in_groups(blocks: list[Any]) -> set[int]:
    """Return the indexes of modules that were sharded together with others in one call of `fully_shard`."""
    states = [id(fully_shard.state(block)) for block in blocks]  # type: ignore[attr-defined]
    return {block_idx for block_idx, state in enumerate(states) if states.count(state) > 1}


def _record_methods(block: nn.Module, record: Callable[[], None]) -> None:
    """Make registered forward methods record that the module is entered, as its forward does."""
    for name, value in list(vars(block).items()):
        if name != _RUN and isinstance(value, MethodType) and hasattr(value, "__wrapped__"):
            vars(block)[name] = _recording(value, record)


def _recording(method: Callable[..., Any], record: Callable[[], None]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        record()
        return method(*args, **kwargs)

    return run
