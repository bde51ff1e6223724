"""The state of every random number generator that training draws from."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from camshaft.hooks_core.support.messages import must_be
from camshaft.loops.data.combined_loader import nodes_of, samplers_of


def generators_of(loader: Iterable[Any]) -> list[torch.Generator]:
    """Return the generators of a loader and of its samplers, each once.

    Of torchdata's nodes, those of the samplers and the iterables that they wrap.
    """
    wrapped = [getattr(node, name, None) for node in nodes_of(loader) for name in ("sampler", "iterable")]
    owners = [owner for source in (loader, *wrapped) for owner in (source, *samplers_of(source))]
    found = [getattr(owner, "generator", None) for owner in owners]
    return list(dict.fromkeys(generator for generator in found if isinstance(generator, torch.Generator)))


def random_state(generators: Sequence[torch.Generator] = ()) -> dict[str, Any]:
    """Return the state of Python's, NumPy's (if imported), torch's and every device's generator, as plain values.

    Those of devices begin with the current one, so that a rank gets its own back on a device of another index.

    Args:
        generators: Further generators, such as those of loaders.
    """
    version, numbers, gauss = random.getstate()
    python = [version, torch.tensor(numbers, dtype=torch.int64), gauss]
    state: dict[str, Any] = {"python": python, "torch": torch.get_rng_state()}
    module = _used_devices()
    if module is not None:
        state["devices"] = [module.get_rng_state(device_idx) for device_idx in _from_current()]
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        name, keys, position, has_gauss, cached = numpy.random.get_state()
        keys = torch.tensor(keys.astype("int64"))
        state["numpy"] = [name, keys, int(position), int(has_gauss), float(cached)]
    state["generators"] = [generator.get_state() for generator in generators]
    return state


def restore_random_state(state: dict[str, Any], generators: Sequence[torch.Generator] = ()) -> None:
    """Put every generator back into a state that `random_state` returned.

    Raises:
        ValueError: If there are more or fewer further generators than there were then.
    """
    if len(generators) != len(state["generators"]):
        rule, where = f"as many as when the state was saved ({len(state['generators'])})", "restore_random_state"
        raise ValueError(must_be("generators of the loaders", rule, len(generators), where, "Give the same loaders."))
    for generator, its_state in zip(generators, state["generators"], strict=True):
        generator.set_state(its_state.cpu())
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers.tolist()), gauss))
    torch.set_rng_state(state["torch"].cpu())
    if "devices" in state and torch.accelerator.is_available():
        module: Any = torch.get_device_module()
        for device_idx, device_state in zip(_from_current(), state["devices"], strict=False):
            module.set_rng_state(device_state.cpu(), device_idx)
    if "numpy" in state:
        try:
            import numpy
        except ImportError:
            return  # nothing can draw from a generator that is not there
        name, keys, *rest = state["numpy"]
        numpy.random.set_state((name, keys.numpy().astype("uint32"), *rest))


def _used_devices() -> Any:
    """Return torch's module of the accelerator, such as `torch.cuda`; None if this process has not used it."""
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is None:
        return None
    module: Any = torch.get_device_module(accelerator)
    is_used = getattr(module, "is_initialized", torch.accelerator.is_available)
    return module if is_used() else None


def _from_current() -> list[int]:
    """Return the indexes of the accelerator's devices, from the current one on."""
    first, count = torch.accelerator.current_device_index(), torch.accelerator.device_count()
    return [(first + position) % count for position in range(count)]


def derived_random_state(state: dict[str, Any], rank: int) -> dict[str, Any]:
    """Return a state derived from another one and a rank, for a process that has none of its own.

    Further generators keep theirs: those of loaders are the same in all processes.
    """
    own = {key: value for key, value in state.items() if key not in ("devices", "generators")}
    with isolated_randomness():
        restore_random_state(own | {"generators": []})
        seed = int(torch.randint(2**31, ())) + rank
        torch.manual_seed(seed)
        random.seed(seed)
        numpy = sys.modules.get("numpy")
        if numpy is not None:
            numpy.random.seed(seed)
        return random_state() | {"generators": state["generators"]}


@contextmanager
def isolated_randomness(generators: Sequence[torch.Generator] = ()) -> Iterator[None]:
    """Restore all generators afterwards, as a context."""
    state = random_state(generators)
    try:
        yield
    finally:
        restore_random_state(state, generators)


def are_same(one: Any, other: Any) -> bool:
    """Return whether two states are equal.

    Args:
        one: A state.
        other: Another.
    """
    if isinstance(one, Tensor) or isinstance(other, Tensor):
        return isinstance(one, Tensor) and isinstance(other, Tensor) and torch.equal(one, other)
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(are_same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(are_same, one, other))
    return bool(one == other)


SEED_WORKERS_VARIABLE = "PL_SEED_WORKERS"
"""Environment variable that asks for it, as `seed_everything(workers=True)` sets it: "1" or "0"."""

_MASK = (1 << 64) - 1
_FINALIZER = (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53)  # of MurmurHash3
_LCG_MULTIPLIER = 6364136223846793005  # Knuth's, modulo 2**64
_GOLDEN = 0x9E3779B97F4A7C15  # the golden ratio times 2**64


def seed_worker(worker_id: int, rank: int | None = None) -> None:
    """Seed torch, Python and NumPy (if installed) in a worker process; for `DataLoader(worker_init_fn=...)`.

    The seeds follow from the loader's base seed, which is drawn anew for each iteration from the loader's generator or
    else from torch's, from the worker and from the process's rank. They are those of Lightning.

    Args:
        worker_id: Index of the worker.
        rank: Rank of the process whose loader it is; None takes that of the environment, else 0.
    """
    if rank is None:
        rank = int(os.environ.get("RANK", 0))
    base_seed = torch.initial_seed() - worker_id
    of_torch, high, low, _ = _mixed(base_seed, worker_id, rank, count=4)
    torch.manual_seed(of_torch)
    random.seed((high << 32) | low)
    try:
        import numpy
    except ImportError:
        return
    numpy.random.seed(numpy.random.SeedSequence([base_seed, worker_id, rank]).generate_state(4))


def seed_workers(loaders: Iterable[Any], rank: int) -> None:
    """Let the workers of data loaders be seeded by `seed_worker`, if the environment asks for it.

    A loader that has a `worker_init_fn` keeps it. Nothing else is read or drawn, so a run that is resumed goes on with
    what its workers had drawn, as without.

    Args:
        loaders: Loaders of any kind.
        rank: Rank of this process.
    """
    if os.environ.get(SEED_WORKERS_VARIABLE, "0") in ("", "0"):
        return
    for loader in loaders:
        if isinstance(loader, DataLoader) and loader.num_workers > 0 and loader.worker_init_fn is None:
            loader.worker_init_fn = partial(seed_worker, rank=rank)


def mixed_seed(*numbers: int) -> int:
    """Return a seed of 64 bits that follows from all numbers and their order, and shares no pattern with others."""
    seed = 0
    for number in numbers:
        seed = _finalized((seed + number + _GOLDEN) & _MASK)
    return seed


def seed_global_numbers(seed: int, device: torch.device | None = None) -> None:
    """Seed torch's generator of the CPU, Python's, NumPy's (if imported) and that of a device, in some microseconds.

    Args:
        seed: A seed of 64 bits, as `mixed_seed` returns it; each generator gets a part or a variant of it.
        device: A device other than the CPU; None for none.
    """
    torch.default_generator.manual_seed(seed)  # `torch.manual_seed` asks all kinds of devices
    random.seed(seed ^ _GOLDEN)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed >> 32)
    if device is not None and device.type != "cpu":
        module: Any = torch.get_device_module(device)
        seed_device = getattr(module, "manual_seed", None) or module.manual_seed_all
        seed_device(seed)


def _finalized(state: int) -> int:
    for multiplier in _FINALIZER:
        state = ((state ^ (state >> 33)) * multiplier) & _MASK
    return state ^ (state >> 33)


def _mixed(base_seed: int, worker_id: int, rank: int, *, count: int) -> list[int]:
    """Return seeds of 64 bits that share no pattern with those of neighbouring workers."""
    state = _finalized((base_seed << 32) | (worker_id << 16) | rank)
    seeds = []
    for _ in range(count):
        state = (state * _LCG_MULTIPLIER + 1) & _MASK
        seeds.append(state)
    return seeds
