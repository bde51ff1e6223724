"""`ModelSummary` of a model under the import names, and what it says of each layer."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.utils.flop_counter import FlopCounterMode

from camshaft.callbacks import summarize as _summarize
from camshaft.callbacks.progress.example_forward import reason_not_to_run, run_example
from camshaft.compat.names.utilities.model_functions import warning_cache
from camshaft.hooks_core.messages import must_be, warn_user

UNKNOWN_SIZE = "?"
NOT_APPLICABLE = "n/a"
LEFTOVER_PARAMS_NAME = "other params"
PARAMETER_NUM_UNITS = [" ", "K", "M", "B", "T"]

_DEPTHS = {"top": 1, "full": -1}


class LayerSummary:
    """Facts about a layer: type, parameters and mode, and from its next forward on the sizes of input and output.

    Args:
        module: The layer.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._in_size: Any = None
        self._out_size: Any = None
        is_scripted = isinstance(module, torch.jit.ScriptModule)  # such a module takes no hook with keywords
        self._hook_handle = None if is_scripted else module.register_forward_hook(self._record, with_kwargs=True)

    def _record(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        given = (*args, *kwargs.values())
        self._in_size = parse_batch_shape(given[0] if len(given) == 1 else given)
        self._out_size = parse_batch_shape(output)
        self.detach_hook()

    def detach_hook(self) -> None:
        """Stop waiting for a forward."""
        if self._hook_handle is not None:
            self._hook_handle.remove()

    def __del__(self) -> None:
        self.detach_hook()

    @property
    def in_size(self) -> Any:
        """Size of the input, a list; lists of them for several, and "?" where there is none."""
        return self._in_size or UNKNOWN_SIZE

    @property
    def out_size(self) -> Any:
        """Size of the output; see `in_size`."""
        return self._out_size or UNKNOWN_SIZE

    @property
    def layer_type(self) -> str:
        """Name of the layer's class."""
        return type(self._module).__name__

    @property
    def num_parameters(self) -> int:
        """Number of elements of the layer's parameters."""
        return _num_elements(self._module)

    @property
    def training(self) -> bool:
        """True in training mode."""
        return self._module.training


class ModelSummary:
    """Summary of a model's layers, to be printed or read.

    A model with an `example_input_array` is called with it once, as in `camshaft.callbacks.summarize`; that changes
    nothing in the model.

    Args:
        model: The model.
        max_depth: Largest depth of layers; 1 means the model's children, -1 all, 0 none.
        mode: In earlier releases: "top" for 1, "full" for -1.

    Raises:
        ValueError: If the depth is no int from -1, or there is no such mode.
        Exception: What the model's forward raises for its example.
    """

    def __init__(self, model: nn.Module, max_depth: int | str = 1, *, mode: str | None = None) -> None:
        if mode is None and max_depth in ("top", "full"):
            mode = str(max_depth)
        if mode is not None and mode not in _DEPTHS:
            raise ValueError(must_be("mode", "'top' or 'full'", mode, "ModelSummary", "Pass `max_depth`."))
        depth: Any = max_depth if mode is None else _DEPTHS[mode]
        if not isinstance(depth, int) or depth < -1:
            rule, action = "an int, -1 or greater", "Pass -1 for all layers, 0 for none."
            raise ValueError(must_be("max_depth", rule, depth, "ModelSummary", action))
        self._model = model
        self._max_depth = depth
        self._flop_counter = FlopCounterMode(display=False)
        self._layer_summary = self.summarize()

    @property
    def named_modules(self) -> list[tuple[str, nn.Module]]:
        """The layers with their names, as deep as asked for; the model itself is none."""
        layers = [(name, layer) for name, layer in self._model.named_modules() if name]
        depth = self._max_depth
        if depth == 1:  # a layer with two names is listed under both
            return list(self._model.named_children())
        return [(name, layer) for name, layer in layers if depth == -1 or name.count(".") < depth]

    def summarize(self) -> dict[str, LayerSummary]:
        """Return by name what is known of each layer; run the example, if there is one."""
        layers = {name: LayerSummary(layer) for name, layer in self.named_modules}
        example = getattr(self._model, "example_input_array", None)
        try:
            if example is not None:
                self._run(example)
        finally:
            for layer in layers.values():
                layer.detach_hook()
        return layers

    def _run(self, example: Any) -> None:
        reason = reason_not_to_run(self._model)
        if reason is not None:
            warn_user(
                f"The summary of {type(self._model).__name__} is without sizes and FLOPs, since {reason}. Make it of a "
                "module with values that is not sharded."
            )
            return
        with self._flop_counter:
            run_example(self._model, example)

    @property
    def layer_names(self) -> list[str]:
        """Names of the layers."""
        return list(self._layer_summary)

    @property
    def layer_types(self) -> list[str]:
        """Names of the layers' classes."""
        return [layer.layer_type for layer in self._layer_summary.values()]

    @property
    def in_sizes(self) -> list[Any]:
        """Sizes of the layers' inputs; see `LayerSummary`."""
        return [layer.in_size for layer in self._layer_summary.values()]

    @property
    def out_sizes(self) -> list[Any]:
        """Sizes of the layers' outputs."""
        return [layer.out_size for layer in self._layer_summary.values()]

    @property
    def param_nums(self) -> list[int]:
        """Number of elements of the layers' parameters."""
        return [layer.num_parameters for layer in self._layer_summary.values()]

    @property
    def training_modes(self) -> list[bool]:
        """The mode of each layer: true in training mode."""
        return [layer.training for layer in self._layer_summary.values()]

    @property
    def total_training_modes(self) -> dict[str, int]:
        """Number of all submodules in mode "train" and "eval"."""
        modes = [layer.training for layer in self._model.modules()][1:]
        return {"train": modes.count(True), "eval": modes.count(False)}

    @property
    def total_parameters(self) -> int:
        """Number of elements of all parameters."""
        return _num_elements(self._model)

    @property
    def trainable_parameters(self) -> int:
        """Number of elements of those that require gradients."""
        return _num_elements(self._model, trainable=True)

    @property
    def total_layer_params(self) -> int:
        """Number of elements of the parameters of the layers."""
        return sum(self.param_nums)

    @property
    def model_size(self) -> float:
        """Size of all parameters in MB: 1,000,000 bytes."""
        return sum(one.numel() * one.element_size() for one in self._model.parameters() if not is_lazy(one)) / 1e6

    @property
    def total_flops(self) -> int:
        """Floating-point operations of the example's forward; 0 without an example."""
        return self._flop_counter.get_total_flops()

    @property
    def flop_counts(self) -> dict[str, dict[Any, int]]:
        """Floating-point operations of each layer by torch's operations."""
        counts = self._flop_counter.get_flop_counts()
        root = type(self._model).__name__
        return {name: dict(counts.get(f"{root}.{name}", {})) for name in self.layer_names}

    def _get_summary_data(self) -> list[tuple[str, list[str]]]:
        """Return heading and cells of each column; libraries print tables of their own from it."""
        flops = [sum(counts.values()) for counts in self.flop_counts.values()]
        columns = [
            (" ", [str(idx) for idx in range(len(self._layer_summary))]),
            ("Name", self.layer_names),
            ("Type", self.layer_types),
            ("Params", [get_human_readable_count(number) for number in self.param_nums]),
            ("Mode", ["train" if training else "eval" for training in self.training_modes]),
            ("FLOPs", [get_human_readable_count(number) for number in flops]),
        ]
        if getattr(self._model, "example_input_array", None) is not None:
            columns += [("In sizes", [str(size) for size in self.in_sizes])]
            columns += [("Out sizes", [str(size) for size in self.out_sizes])]
        num_left = self.total_parameters - self.total_layer_params
        if num_left > 0:
            known = {" ": " ", "Name": LEFTOVER_PARAMS_NAME, "Params": get_human_readable_count(num_left)}
            columns = [(heading, [*cells, known.get(heading, NOT_APPLICABLE)]) for heading, cells in columns]
        return columns

    def __str__(self) -> str:
        return str(_summarize(self._model, self._max_depth))

    __repr__ = __str__


def _num_elements(module: nn.Module, trainable: bool = False) -> int:
    parameters = [one for one in module.parameters() if one.requires_grad or not trainable]
    counted = [one for one in parameters if not is_lazy(one)]
    if len(counted) < len(parameters):
        warning_cache.warn(
            "The total number of parameters detected may be inaccurate, since some have no shape before the first"
            " forward. Call the model once."
        )
    return sum(one.numel() for one in counted)


def summarize(lightning_module: nn.Module, max_depth: int = 1, mode: str | None = None) -> ModelSummary:
    """Return `ModelSummary(lightning_module, max_depth, mode=mode)`."""
    return ModelSummary(lightning_module, max_depth, mode=mode)


def parse_batch_shape(batch: Any) -> Any:
    """Return the shape of a tensor as a list, lists of them for a list or tuple, and "?" for anything else."""
    if hasattr(batch, "shape"):
        return list(batch.shape)
    return [parse_batch_shape(part) for part in batch] if isinstance(batch, (list, tuple)) else UNKNOWN_SIZE


def get_formatted_model_size(total_model_size: float) -> str:
    """Return a size in MB with three places."""
    return f"{total_model_size:,.3f}"


def get_human_readable_count(number: int) -> str:
    """Return a number in short form: "1.2 K", "2.0 M", "400 T"; below a thousand with two blanks behind."""
    units = PARAMETER_NUM_UNITS
    power = min((len(str(int(number))) - 1) // 3, len(units) - 1)
    shown = number / 1000**power
    return f"{int(shown):,d} {units[power]}" if power == 0 or shown >= 100 else f"{shown:,.1f} {units[power]}"
