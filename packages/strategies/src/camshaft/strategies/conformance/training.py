"""A run of a strategy, in the order in which the loops call it, and the same training on one device by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Generic, TypeVar

import torch
from attrs import define, field
from torch import Tensor, nn
from torch.optim import Optimizer

from camshaft.hooks_core.protocols import Strategy
from camshaft.strategies.conformance.trial import Trial, same

NUM_INPUTS, NUM_HIDDEN, NUM_OUTPUTS = 6, 5, 3  # 5 rows are no multiple of two ranks
SHARE = 4  # samples of a batch on each of the ranks that share the data out
STEPS = ("training_step", "validation_step", "test_step", "predict_step")

Batch = dict[str, Tensor]


class Subject(nn.Module):
    """A small regression with a frozen parameter and buffers.

    Args:
        seed: The seed of the weights; no global random numbers are used.
    """

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.first = nn.Linear(NUM_INPUTS, NUM_HIDDEN)
        self.last = nn.Linear(NUM_HIDDEN, NUM_OUTPUTS)
        self.frozen = nn.Parameter(torch.ones(NUM_HIDDEN), requires_grad=False)
        self.register_buffer("offset", torch.zeros(NUM_OUTPUTS))
        self.register_buffer("version", torch.tensor(seed))
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(0.5 * torch.randn(parameter.shape, generator=generator))

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.last(torch.tanh(self.first(inputs)) * self.frozen) + self.offset
        return outputs

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        return nn.functional.mse_loss(self(batch["inputs"]), batch["targets"])

    def predict_step(self, batch: Batch, batch_idx: int) -> Any:
        return self(batch["inputs"])

    validation_step = test_step = predict_step


class DeferredModel(nn.Module):
    """A module without layers until `build` is called."""

    net: nn.Sequential

    def build(self) -> None:
        """Create the layers, with PyTorch's own initialisation by the global random numbers."""
        self.net = nn.Sequential(nn.Linear(NUM_INPUTS, NUM_HIDDEN), nn.Tanh(), nn.Linear(NUM_HIDDEN, NUM_OUTPUTS))

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        return nn.functional.mse_loss(self.net(batch["inputs"]), batch["targets"])


class Midpoint(Optimizer):
    """An optimizer that steps along the gradient half a step ahead: like LBFGS it evaluates the closure repeatedly."""

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any]) -> Any:  # type: ignore[override]  # as LBFGS, it needs one
        """Make an update; the closure computes the loss with its gradients."""
        begin = [(p, p.clone(), group["lr"]) for group in self.param_groups for p in group["params"]]
        for share in (0.5, 1.0):
            with torch.enable_grad():
                loss = closure()
            for parameter, start, lr in begin:
                if parameter.grad is not None:
                    parameter.copy_(start - share * lr * parameter.grad)
        return loss


def global_batch(batch_idx: int, num_data_ranks: int) -> Batch:
    """Return the batch of all ranks together, on the CPU."""
    generator = torch.Generator().manual_seed(1000 + batch_idx)
    inputs = torch.randn(SHARE * num_data_ranks, NUM_INPUTS, generator=generator)
    targets = torch.stack([inputs.sum(1).sin(), inputs[:, 0], inputs[:, 1] * inputs[:, 2]], dim=1)
    return {"inputs": inputs, "targets": targets}


# Its learning rate is large enough to detect wrong gradients.
sgd = partial(torch.optim.SGD, lr=0.3)
momentum = partial(torch.optim.SGD, lr=0.1, momentum=0.9)
# Its state has tensors and step counts; its epsilon can be represented in 16 bits.
adam = partial(torch.optim.Adam, lr=0.02, eps=1e-3)
midpoint = partial(Midpoint, lr=0.3)

MAX_ATTEMPTS = 40  # halving the scale of losses so often takes it below 1

Clip = tuple[float, str]
Configure = Callable[[nn.Module], list[Optimizer]]
M = TypeVar("M", bound=nn.Module)


def one(make_optimizer: Callable[[Any], Optimizer]) -> Configure:
    """Return a function that makes a single optimizer of all parameters."""
    return lambda module: [make_optimizer(module.parameters())]


PLAIN = one(sgd)


class Training(Generic[M]):
    """The training of a module."""

    module: M

    def weights(self) -> dict[str, Tensor]:
        """Return copies of all parameters and buffers by name, whole, on the CPU. Collective if they are sharded."""
        return {name: whole(value) for name, value in self.module.state_dict().items()}

    def gradients(self) -> dict[str, Tensor]:
        """Return copies of the gradients by name, whole, on the CPU. Collective if they are sharded."""
        named = self.module.named_parameters()
        return {name: whole(value.grad) for name, value in named if value.grad is not None}


@define(eq=False)
class StrategyRun(Training[M]):
    """A run of a strategy as a context, from `connect` to `teardown`.

    Attributes:
        configure: A function that makes the optimizers of the module; plain gradient descent by default.
        strategy: The strategy; a new one by default.
        reference: The same training on one device; one that begins now by default.
        checkpoint: A checkpoint to resume from: "state_dict", "optimizers" and "strategy", from `load_checkpoint`.
        steps: The wrapped steps by name.
        optimizers: As the strategy prepared them.
    """

    trial: Trial
    module: M
    configure: Configure = PLAIN
    strategy: Strategy = field(kw_only=True)
    reference: Reference = field(default=None, kw_only=True)  # made by `__enter__`
    checkpoint: Mapping[str, Any] | None = field(default=None, kw_only=True)
    steps: dict[str, Callable[..., Any]] = field(factory=dict, init=False)
    optimizers: list[Optimizer] = field(factory=list, init=False)

    @strategy.default
    def _new_strategy(self) -> Strategy:
        return self.trial.make_strategy()

    @property
    def optimizer(self) -> Optimizer:
        """The only optimizer."""
        (optimizer,) = self.optimizers
        return optimizer

    def __enter__(self) -> StrategyRun[M]:
        strategy, module = self.strategy, self.module
        self.steps = {name: strategy.wrap_step(getattr(module, name)) for name in STEPS if hasattr(module, name)}
        strategy.connect()
        self.reference = self.reference or Reference(strategy.num_data_ranks, self.configure)
        with strategy.model_context(module):
            if isinstance(module, DeferredModel):
                module.build()
        strategy.setup_module(module)
        if self.checkpoint is not None:
            strategy.load_module_state(module, self.checkpoint["state_dict"])
        self.optimizers = strategy.setup_optimizers(self.configure(module))
        if self.checkpoint is not None:
            for optimizer, state in zip(self.optimizers, self.checkpoint["optimizers"], strict=True):
                strategy.load_optimizer_state(optimizer, state)
            strategy.load_state_dict(self.checkpoint["strategy"])
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        try:
            self.strategy.teardown()
        except Exception:
            if error is None:  # the first error matters more
                raise

    def share(self, batch_idx: int) -> Batch:
        """Return this rank's samples of a batch, on the device."""
        rank, num_ranks = self.strategy.data_rank, self.strategy.num_data_ranks
        own = {name: value[rank::num_ranks] for name, value in global_batch(batch_idx, num_ranks).items()}
        batch: Batch = self.strategy.batch_to_device(own)
        return batch

    def backward_on(
        self, *batch_idxs: int, factor: float = 1.0, differentiate: Callable[[Tensor], Any] | None = None
    ) -> None:
        """Compute the gradients of the mean loss over some batches, times a factor. Collective."""
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        self.module.train()
        for position, batch_idx in enumerate(batch_idxs):
            if len(batch_idxs) > 1:
                self.strategy.set_gradient_sync(position == len(batch_idxs) - 1)
            loss = self.steps["training_step"](self.share(batch_idx), position)
            loss = loss * (factor / len(batch_idxs))
            self.strategy.backward(loss, *() if differentiate is None else (differentiate,))

    def step(self, clip: Clip | None = None) -> bool:
        """Unscale, clip (the first optimizer's gradients) and step. Return whether no step was skipped. Collective."""
        is_done = True
        for position, optimizer in enumerate(self.optimizers):
            self.strategy.unscale_gradients(optimizer)
            if clip is not None and position == 0:
                self.strategy.clip_gradients(optimizer, *clip)
            self.strategy.optimizer_step(optimizer)
            is_done &= not self.strategy.has_skipped_step
        return is_done

    def update(self, *batch_idxs: int, clip: Clip | None = None) -> None:
        """Update the weights by some batches' gradients, repeatedly while the strategy skips it. Collective.

        Only the first optimizer's gradients are clipped.
        """
        for _ in range(MAX_ATTEMPTS):
            self.backward_on(*batch_idxs)
            if self.step(clip):
                return
        seen = f"it is true after {MAX_ATTEMPTS} attempts with gradients of common size"
        self.trial.expect(False, "`has_skipped_step` must be false after an update", seen)
        self.trial.stop_if_failed()

    def update_both(self, *batch_idxs: int, clip: Clip | None = None) -> None:
        """Make the same update here and on one device. Collective."""
        self.update(*batch_idxs, clip=clip)
        self.reference.update(*batch_idxs, clip=clip)

    def expect_output(self, name: str, batch_idx: int, what: str) -> None:
        """Expect the output of a step to be that of one device. Collective."""
        share = self.share(batch_idx)
        output = self.steps[name](share, batch_idx).cpu()
        self.trial.expect_close({name: output}, {name: self.reference.module(whole(share["inputs"]))}, what)

    def expect_alike(self, what: str) -> None:
        """Expect the weights of one device, and the same on all ranks. Collective."""
        weights = self.weights()
        self.trial.expect_close(weights, self.reference.weights(), what)
        self.trial.expect_same_everywhere(weights, f"weights {what.rstrip(',')}")

    def warm_up(self) -> bool:
        """Adapt the loss scale until no update is skipped, without changing weights. Collective.

        Returns:
            Whether the strategy scales losses, so that `unscale_gradients` changes gradients.
        """
        groups = [group for optimizer in self.optimizers for group in optimizer.param_groups]
        rates = [group["lr"] for group in groups]
        for group in groups:
            group["lr"] = 0.0
        self.update(0)
        self.backward_on(0)
        before = self.gradients()
        self.step()
        scales = not same(self.gradients(), before)
        for group, rate in zip(groups, rates, strict=True):
            group["lr"] = rate
        return any(self.trial.ranks.exchange(scales))


class Reference(Training[Subject]):
    """The same training on one device and whole batches, written by hand.

    Args:
        num_data_ranks: The number of shares of a batch in the training that it is compared to.
        configure: A function that makes the optimizers.
    """

    def __init__(self, num_data_ranks: int, configure: Configure) -> None:
        self.module = Subject()
        self.optimizers = configure(self.module)
        self._num_data_ranks = num_data_ranks

    def backward_on(self, *batch_idxs: int) -> None:
        """Compute the gradients of the mean loss over some batches."""
        self.module.zero_grad()
        for position, batch_idx in enumerate(batch_idxs):
            loss = self.module.training_step(global_batch(batch_idx, self._num_data_ranks), position)
            (loss / len(batch_idxs)).backward()  # type: ignore[no-untyped-call]

    def update(self, *batch_idxs: int, clip: Clip | None = None) -> None:
        """Update the weights by some batches' gradients; only the first optimizer's are clipped."""
        self.backward_on(*batch_idxs)
        if clip is not None:
            parameters = [p for group in self.optimizers[0].param_groups for p in group["params"]]
            limit, algorithm = clip
            (nn.utils.clip_grad_norm_ if algorithm == "norm" else nn.utils.clip_grad_value_)(parameters, limit)
        for optimizer in self.optimizers:
            optimizer.step()


def whole(value: Tensor) -> Tensor:
    """Return a copy of a tensor on the CPU, gathered if it is sharded (has `full_tensor`). Collective then."""
    full = getattr(value, "full_tensor", None)
    tensor: Tensor = value if full is None else full()
    return tensor.detach().to("cpu", copy=True)
