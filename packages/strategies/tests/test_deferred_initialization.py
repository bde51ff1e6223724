from __future__ import annotations

import copy
import gc
import random
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from camshaft.strategies.sharding.deferred_initialization import DeferredInitialization, _states, shared_randomness
from camshaft.strategies.sharding.operation_recorder import DeferredInitializationError


def build_both(build: Callable[[], nn.Module], seed: int = 1) -> tuple[nn.Module, nn.Module]:
    """Build a module with and without deferred initialization, and assert that the random states agree."""
    torch.manual_seed(seed)
    expected = build()
    state = torch.get_rng_state()
    torch.manual_seed(seed)
    deferred = DeferredInitialization()
    with deferred:
        built = build()
    deferred.materialize(built)
    assert torch.equal(torch.get_rng_state(), state)
    return expected, built


def assert_equal_bits(expected: nn.Module, built: nn.Module) -> None:
    ours, theirs = built.state_dict(), expected.state_dict()
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        assert ours[name].dtype == value.dtype, name
        assert torch.equal(ours[name], value), name


def assert_same(build: Callable[[], nn.Module]) -> nn.Module:
    expected, built = build_both(build)
    assert_equal_bits(expected, built)
    return built


class Filled(nn.Module):
    """A module that is filled by a function."""

    def __init__(self, fill: Callable[[Filled], object]) -> None:
        super().__init__()
        fill(self)


def filled(fill: Callable[[Any], object]) -> Callable[[], Filled]:
    return lambda: Filled(fill)


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Linear(5, 4),
        lambda: nn.Conv2d(3, 8, 3),
        lambda: nn.Embedding(7, 4, padding_idx=2),
        lambda: nn.LSTM(4, 3, num_layers=2, bidirectional=True),
        lambda: nn.MultiheadAttention(8, 2, kdim=4, vdim=6),
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16), 3),
        lambda: nn.BatchNorm1d(3),
        lambda: nn.Bilinear(3, 4, 5),
        lambda: nn.PReLU(4),
        lambda: nn.Linear(5, 4).to(torch.bfloat16),
        lambda: nn.Linear(5, 4).double(),
        lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)),
        lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(4, 6)),
        lambda: nn.utils.parametrizations.orthogonal(nn.Linear(4, 4)),
        lambda: nn.ModuleList(copy.deepcopy(nn.Linear(3, 2)) for _ in range(3)),
    ],
)
def test_layers_have_the_weights_of_their_own_reset_parameters(make: Callable[[], nn.Module]) -> None:
    assert_same(make)


@pytest.mark.parametrize(
    "init",
    [
        lambda w: nn.init.trunc_normal_(w, std=0.02),
        lambda w: nn.init.trunc_normal_(w, std=1.0, a=-0.7, b=0.9),
        lambda w: nn.init.trunc_normal_(w, std=9.0, a=-0.3, b=0.3),
        lambda w: nn.init.orthogonal_(w, gain=2.0),
        lambda w: nn.init.sparse_(w, 0.3),
        lambda w: nn.init.eye_(w),
        lambda w: nn.init.xavier_normal_(w),
        lambda w: w.data.copy_(torch.randn(6, 5) * 0.02),
        lambda w: w.data.bernoulli_(0.3).mul_(2).sub_(1),
        lambda w: w.data.copy_(torch.from_numpy(np.arange(30.0).reshape(6, 5))),
    ],
)
def test_functions_that_initialise_are_carried_out(init: Callable[[Tensor], object]) -> None:
    def fill(module: Any) -> None:
        module.layers = nn.Sequential(nn.Linear(5, 6), nn.Linear(5, 6), nn.Linear(6, 5))
        module.layers[:2].apply(lambda layer: init(layer.weight) if isinstance(layer, nn.Linear) else None)

    assert_same(filled(fill))


def test_convolutions_may_begin_as_identities() -> None:
    assert_same(
        filled(lambda module: nn.init.dirac_(setattr(module, "conv", nn.Conv1d(4, 4, 3)) or module.conv.weight))
    )


def test_single_weights_buffers_and_plain_attributes_are_made() -> None:
    def fill(module: Any) -> None:
        module.position = nn.Parameter(torch.randn(7, 4) * 0.02)
        module.register_buffer("mask", torch.tril(torch.ones(5, 5)).bool())
        module.register_buffer("factors", torch.tensor([1.0, 2.0]) * 3)
        module.frequencies = 1 / 10 ** (torch.arange(0, 8, 2) / 8)
        module.pairs = {"a": [torch.zeros(2), torch.rand(2)], "b": 3}
        module.head = nn.Linear(4, 7)
        module.head.weight = module.position
        module.frozen = nn.Parameter(torch.rand(3), requires_grad=False)

    expected, built = build_both(filled(fill))
    assert_equal_bits(expected, built)
    assert torch.equal(built.frequencies, expected.frequencies)
    assert torch.equal(built.pairs["a"][1], expected.pairs["a"][1]) and built.pairs["b"] == 3
    assert built.head.weight is built.position
    assert not built.frozen.requires_grad and built.position.requires_grad and built.position.is_leaf


def test_values_that_the_code_asks_for_are_known() -> None:
    def fill(module: Any) -> None:
        module.rates = [rate.item() for rate in torch.linspace(0, 0.1, 4)]
        module.layer = nn.Linear(4, 4)
        module.largest = float(module.layer.weight.detach().max())
        module.rows = module.layer.weight.tolist()
        if (module.layer.bias > 0).any():
            nn.init.zeros_(module.layer.bias)
        module.other = nn.Linear(2, 2)
        module.array = module.layer.bias.detach().numpy().copy()
        module.chosen = torch.randperm(4)[:2].tolist()
        module.positive = nn.Parameter(module.layer.weight.detach()[module.layer.weight > 0])
        module.last = nn.Parameter(torch.randn(3))

    expected, built = build_both(filled(fill))
    assert_equal_bits(expected, built)
    for name in ("rates", "largest", "rows", "chosen"):
        assert getattr(built, name) == getattr(expected, name), name
    assert (built.array == expected.array).all()


def test_seeds_and_forked_states_within_the_hook_count() -> None:
    def fill(module: Any) -> None:
        module.first = nn.Linear(3, 3)
        with torch.random.fork_rng():
            torch.manual_seed(5)
            module.seeded = nn.Linear(3, 3)
        state = torch.get_rng_state()
        module.second = nn.Linear(3, 3)
        torch.set_rng_state(state)
        module.same_as_second = nn.Linear(3, 3)
        generator = torch.Generator().manual_seed(3)
        nn.init.normal_(module.first.bias, generator=generator)
        generator.manual_seed(3)
        nn.init.normal_(module.second.bias, generator=generator)
        torch.manual_seed(77)
        module.last = nn.Linear(3, 3)
        module.seed = torch.initial_seed()

    expected, built = build_both(filled(fill))
    assert_equal_bits(expected, built)
    assert built.seed == expected.seed == 77


def test_parameters_that_exist_before_may_be_initialised_again() -> None:
    def build() -> nn.Module:
        module = Filled(lambda module: setattr(module, "old", nn.Linear(3, 3)))
        return module

    def change(module: Any) -> None:
        nn.init.normal_(module.old.weight)
        module.new = nn.Linear(3, 3)
        module.old.bias.data.copy_(module.new.bias.data)
        module.constant = torch.ones(3)
        with torch.no_grad():
            module.new.weight[0] = module.old.weight.sum()

    torch.manual_seed(4)
    expected: Any = build()
    change(expected)
    torch.manual_seed(4)
    built: Any = build()
    old = built.old.weight
    deferred = DeferredInitialization()
    with deferred:
        change(built)
    deferred.materialize(built)
    assert built.old.weight is old
    assert_equal_bits(expected, built)


def test_what_the_hook_itself_puts_on_the_meta_device_has_no_values_until_to_empty() -> None:
    def fill(module: Any) -> None:
        with torch.device("meta"):
            module.first = nn.Linear(4, 3)
            nn.init.trunc_normal_(module.first.weight)
            nn.init.orthogonal_(module.first.weight)
        module.second = nn.Linear(3, 2, device="meta")
        module.third = nn.Linear(2, 2)
        module.to_empty(device="cpu")
        for parameter in module.parameters():
            nn.init.normal_(parameter)

    assert_same(filled(fill))


def test_a_parameter_without_values_is_named() -> None:
    module = nn.Module()
    deferred = DeferredInitialization()
    state = torch.get_rng_state()
    with deferred:
        module.layer = nn.Linear(2, 2)
        module.empty = nn.Linear(2, 2, device="meta")
    message = "`empty.weight` must be given values, but got 'none' (str) in the hooks that build the model. Initialise"
    with pytest.raises(DeferredInitializationError, match=re.escape(message)):
        deferred.materialize(module)
    assert torch.equal(torch.get_rng_state(), state)


def test_an_error_within_leaves_the_random_state_and_says_why_there_are_no_values() -> None:
    state = torch.get_rng_state()
    real = nn.Linear(2, 2)
    state = torch.get_rng_state()
    with pytest.raises(RuntimeError, match="incompatible tensor type") as caught, DeferredInitialization():
        nn.Linear(2, 2)
        real.weight.data = torch.randn(2, 2)
    assert "new tensors have no values yet" in caught.value.__notes__[0]
    assert torch.equal(torch.get_rng_state(), state)


def test_a_real_tensor_may_change_after_it_was_read() -> None:
    def fill(module: Any) -> None:
        scale = torch.tensor([1.0, 2.0])
        module.first = nn.Parameter(torch.randn(2) * scale)
        scale.mul_(torch.rand(2))
        module.second = nn.Parameter(torch.randn(2) * scale)
        scale.copy_(module.first.detach())
        module.third = nn.Parameter(module.second.detach() + scale)

    assert_same(filled(fill))


def test_values_are_computed_again_where_there_was_no_room_to_keep_them(monkeypatch: pytest.MonkeyPatch) -> None:
    from camshaft.strategies.sharding import operation_recorder

    monkeypatch.setattr(operation_recorder, "_KEPT_BYTES", 0)
    monkeypatch.setattr(operation_recorder, "_NUM_KEPT", 1)
    generator = random.Random(1)
    for _ in range(50):
        names = generator.choices(sorted(OPERATIONS), k=25)

        def fill(module: Any, names: list[str] = names) -> None:
            known = [torch.randn(3, 4)]
            for name in names:
                OPERATIONS[name](known)
            for idx, value in enumerate(known):
                module.register_parameter(f"parameter_{idx}", nn.Parameter(value))

        assert_same(filled(fill))


def test_sparse_tensors_are_refused() -> None:
    message = "`tensor` must be dense, neither conjugated nor negated, but got torch.sparse_coo"
    with pytest.raises(DeferredInitializationError, match=message), DeferredInitialization():
        torch.rand(3, 3).to_sparse() @ torch.rand(3)


def test_pythons_and_numpys_random_numbers_are_drawn_at_once() -> None:
    def fill(module: Any) -> None:
        scale = random.random() + np.random.rand()
        module.weight = nn.Parameter(torch.randn(3) * scale)
        module.from_numpy = nn.Parameter(torch.from_numpy(np.random.rand(3)))

    def build() -> nn.Module:
        random.seed(1)
        np.random.seed(1)
        return Filled(fill)

    assert_same(build)


def test_tensors_take_no_memory_until_they_are_materialised() -> None:
    deferred = DeferredInitialization()
    with deferred:
        module = nn.Linear(4, 4)
        module.table = torch.zeros(10**6, 10**6)  # 4 TB
    assert module.weight.is_meta and module.table.is_meta
    assert deferred.has_deferred(module) and not deferred.has_deferred(nn.Linear(1, 1))


@pytest.mark.exhaustive
@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak of memory from /proc")
@pytest.mark.parametrize("is_rejecting", [False, True])
def test_values_that_are_overwritten_take_no_memory_while_others_are_made(
    is_rejecting: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from camshaft.strategies.sharding import deferred_initialization

    def init(layer: nn.Module) -> None:
        if isinstance(layer, nn.Linear) and is_rejecting:
            nn.init.trunc_normal_(layer.weight, std=1.0)
        elif isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight)

    def build(num_layers: int, size: int) -> nn.Module:
        return nn.Sequential(*(nn.Linear(size, size) for _ in range(num_layers))).apply(init)

    # as if this process held but one element of each parameter
    part_of = deferred_initialization._Target.part_of
    monkeypatch.setattr(
        deferred_initialization._Target, "part_of", lambda self, full: part_of(self, full.flatten()[:1])
    )
    warm_up = DeferredInitialization()
    with warm_up:
        module = build(1, 2)
    warm_up.materialize(module)
    gc.collect()
    start = peak_of_memory(is_reset=True)
    deferred = DeferredInitialization()
    with deferred:
        module = build(50, 1000)
    deferred.materialize(module)
    whole = 50 * 1000 * 1000 * 4 / 2**20
    assert peak_of_memory() - start < 0.6 * whole


def peak_of_memory(is_reset: bool = False) -> float:
    """Return the peak memory of this process since the last reset, in MiB."""
    if is_reset:
        Path("/proc/self/clear_refs").write_text("5")
    status = Path("/proc/self/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) / 1024


OPERATIONS: dict[str, Callable[[list[Tensor]], object]] = {
    "new normal": lambda known: known.append(torch.randn(3, 4)),
    "new zeros": lambda known: known.append(torch.zeros(4, 3)),
    "new real": lambda known: known.append(torch.tensor([[0.5, -1.0, 2.0]])),
    "uniform": lambda known: known[0].uniform_(-1, 1),
    "normal of a row": lambda known: known[-1][0].normal_(),
    "fill": lambda known: known[-1].fill_(0.25),
    "add": lambda known: known[-1].add_(known[0].mean()),
    "scaled copy": lambda known: known.append(known[-1] * 0.5),
    "transposed copy": lambda known: known.append(known[0].t().contiguous()),
    "copy of the first": lambda known: known[-1].copy_(known[0].mean().expand_as(known[-1])),
    "swap": lambda known: known.insert(0, known.pop()),
    "drop": lambda known: known.pop() if len(known) > 1 else None,
    "read": lambda known: known.append(torch.full((2,), known[-1].sum().item())),
    "branch": lambda known: known[-1].neg_() if known[0].sum() > 0 else known[-1].exponential_(),
    "repeat": lambda known: [known[-1].uniform_() for _ in range(9) if known[-1].flatten()[0] < 0.5],
    "seed": lambda known: torch.manual_seed(len(known)),
    "dropout": lambda known: known.append(nn.functional.dropout(known[-1])),
}


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(sorted(OPERATIONS)), max_size=25))
def test_any_sequence_of_operations_gives_the_same_bits(names: list[str]) -> None:
    def fill(module: Any) -> None:
        known = [torch.randn(3, 4)]
        for name in names:
            OPERATIONS[name](known)
        for idx, value in enumerate(known):
            module.register_parameter(f"parameter_{idx}", nn.Parameter(value))

    assert_same(filled(fill))


def seed_all(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def draw() -> list[float]:
    return [random.random(), float(np.random.rand()), float(torch.rand(()))]


def states_of_seed(seed: int) -> Any:
    seed_all(seed)
    return _states()


def test_all_draw_what_the_first_draws() -> None:
    first = states_of_seed(1)
    expected = draw()
    seed_all(2)
    with shared_randomness(lambda own: first):
        assert draw() == expected


def test_a_process_that_was_seeded_otherwise_goes_on_with_its_own_states() -> None:
    first = states_of_seed(1)
    seed_all(2)
    expected = draw()
    seed_all(2)
    with shared_randomness(lambda own: first):
        draw()
    assert draw() == expected


def test_each_generator_of_the_same_state_goes_on_from_what_was_drawn() -> None:
    first = states_of_seed(1)
    draw()
    expected = draw()
    random.seed(5)
    of_another_seed = random.random()
    seed_all(1)
    random.seed(5)
    with shared_randomness(lambda own: first):
        draw()
    assert draw() == [of_another_seed, *expected[1:]]
