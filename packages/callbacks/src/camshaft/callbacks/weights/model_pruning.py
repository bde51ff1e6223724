"""Callback that prunes parameters in training."""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from typing import Any, ClassVar, Final

import attrs
import torch
from torch import Tensor, nn
from torch.nn.utils import prune

from camshaft.callbacks.arguments import InvalidArgumentError, check_one_of
from camshaft.callbacks.weights.averaged_weights import check_unsharded
from camshaft.hooks_core import Callback
from camshaft.hooks_core.protocols import TrainerProtocol

Parameters = Sequence[tuple[nn.Module, str]]
"""Modules with names of parameters in them."""

_METHODS: Final[dict[str, tuple[Callable[..., Any], type[prune.BasePruningMethod]]]] = {
    "l1_unstructured": (prune.l1_unstructured, prune.L1Unstructured),
    "ln_structured": (prune.ln_structured, prune.LnStructured),
    "random_structured": (prune.random_structured, prune.RandomStructured),
    "random_unstructured": (prune.random_unstructured, prune.RandomUnstructured),
}
"""By name, torch's function for one parameter, and its method for all together."""

_OPTIONS: Final = {"ln_structured": ("pruning_dim", "pruning_norm"), "random_structured": ("pruning_dim",)}

_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


@attrs.define(slots=False, eq=False, repr=False)
class ModelPruning(Callback):
    """Prunes parameters with `torch.nn.utils.prune`, at the end of epochs.

    A pruned parameter `weight` is then `weight_orig`, which the optimizer trains, times `weight_mask`. All ranks have
    the masks of rank 0. Checkpoints hold the pruned weights under their own names, and the masks in this callback's
    state, with which a resumed fit goes on; with `make_pruning_permanent=False` they hold `weight_orig` and
    `weight_mask`.

    Args:
        pruning_fn: "l1_unstructured", "ln_structured", "random_structured", "random_unstructured", or a subclass of
            torch's `BasePruningMethod`.
        parameters_to_prune: Modules with names of parameters; empty stands for all `parameter_names` of modules that
            are neither containers nor have a `training_step`.
        parameter_names: "weight", "bias" or both; None is both.
        use_global_unstructured: Whether `amount` is of all these parameters together, which needs an unstructured
            method; otherwise of each.
        amount: Share of the parameters (a float), or their number (an int), that is pruned each time; or a function of
            the epoch that returns one, and 0 for none.
        apply_pruning: Whether to prune; or a function of the epoch that says so.
        make_pruning_permanent: Whether masks are applied for good when training ends, and in checkpoints.
        use_lottery_ticket_hypothesis: Whether the parameters that are left get their values from before training after
            each pruning (Frankle and Carbin, "The Lottery Ticket Hypothesis", ICLR 2019); or a function of the epoch
            that says so.
        resample_parameters: Whether they get new random values instead, where their module has `reset_parameters`.
        pruning_dim: Dimension of what a structured method prunes.
        pruning_norm: Order of the norm of "ln_structured".
        verbose: 1 prints how much is pruned, 2 for each parameter too; on rank 0.
        prune_on_train_epoch_end: Whether to prune at the end of training epochs; otherwise of validation.

    Raises:
        InvalidArgumentError: If an argument is none of these; in fit, if a parameter is not in the module.
        ValueError: In fit, if the module's parameters are sharded.
    """

    PARAMETER_NAMES: ClassVar[tuple[str, ...]] = ("weight", "bias")

    pruning_fn: str | type[prune.BasePruningMethod]
    _given: Parameters = attrs.field(default=(), alias="parameters_to_prune")
    _parameter_names: Sequence[str] | None = None
    _use_global_unstructured: bool = True
    amount: int | float | Callable[[int], int | float] = 0.5
    _apply_pruning: bool | Callable[[int], bool] = True
    _make_pruning_permanent: bool = True
    _use_lottery_ticket_hypothesis: bool | Callable[[int], bool] = True
    _resample_parameters: bool = False
    _pruning_dim: int | None = None
    _pruning_norm: int | None = None
    _verbose: int = 0
    _prune_on_train_epoch_end: bool = True
    _parameters_to_prune: Parameters = attrs.field(default=(), init=False)
    _original_layers: dict[int, dict[str, Any]] = attrs.field(factory=dict, init=False)  # by id of the module
    _module: Any = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self._parameters_to_prune = self._given
        self._parameter_names = tuple(self._parameter_names or self.PARAMETER_NAMES)
        for name in self._parameter_names:
            check_one_of(self, self.PARAMETER_NAMES, parameter_names=name)
        check_one_of(self, (0, 1, 2), verbose=self._verbose)
        if not isinstance(self.amount, (int, float)) and not callable(self.amount):
            rule = "an int, a float or a function of the epoch"
            raise InvalidArgumentError("amount", rule, self.amount, self, "Pass for instance 0.5 for a half.")
        self._function, self._options = self._torch_function()

    @property
    def state_key(self) -> str:
        """Class name and the arguments that tell the states of two of these apart."""
        arguments = {
            "pruning_fn": getattr(self.pruning_fn, "__qualname__", self.pruning_fn),
            "amount": getattr(self.amount, "__qualname__", self.amount),
            "parameter_names": self._parameter_names,
        }
        return f"{type(self).__qualname__}{arguments!r}"

    # for subclasses

    def filter_parameters_to_prune(self, parameters_to_prune: Parameters = ()) -> Parameters:
        """Return the parameters to prune among those that were found; to be overridden."""
        return parameters_to_prune

    def apply_pruning(self, amount: int | float) -> None:
        """Prune once.

        Args:
            amount: See the class.
        """
        before = [_pruned(module, name) for module, name in self._parameters_to_prune]
        with _in_order(module for module, _ in self._parameters_to_prune):
            if self._use_global_unstructured:
                takes_amount = "amount" in inspect.signature(self._function).parameters
                options = {**self._options, "amount": amount} if takes_amount else self._options
                prune.global_unstructured(list(self._parameters_to_prune), self._function, **options)
            else:
                for module, name in self._parameters_to_prune:
                    self._function(module, name=name, amount=amount, **self._options)
        if self._verbose:
            self._print(before, amount)

    def apply_lottery_ticket_hypothesis(self) -> None:
        """Give the parameters their values from before training, or new ones."""
        for layer in self._original_layers.values():
            original = layer["data"]
            if self._resample_parameters and callable(getattr(original, "reset_parameters", None)):
                original = deepcopy(original)
                original.reset_parameters()
            for idx, name in layer["names"]:
                module, _ = self._parameters_to_prune[idx]
                trained = _trained(module, name)
                trained.data.copy_(getattr(original, name).data)

    def make_pruning_permanent(self, module: nn.Module) -> None:
        """Apply the masks of a module for good."""
        with _in_order(module.modules()):
            for part in module.modules():
                for key, hook in list(part._forward_pre_hooks.items()):
                    if isinstance(hook, prune.BasePruningMethod):
                        hook.remove(part)
                        del part._forward_pre_hooks[key]

    @staticmethod
    def sanitize_parameters_to_prune(
        pl_module: nn.Module, parameters_to_prune: Parameters = (), parameter_names: Sequence[str] = ()
    ) -> Parameters:
        """Return the parameters that are given, or else all that there are.

        Args:
            pl_module: The module of the fit.
            parameters_to_prune: Modules in it, with names of parameters.
            parameter_names: What to look for if none are given.

        Raises:
            InvalidArgumentError: If one is not in the module.
        """
        parts = [
            part
            for part in pl_module.modules()
            if not isinstance(part, _CONTAINERS) and not hasattr(part, "training_step")
        ]
        if not parameters_to_prune:
            names = parameter_names or ModelPruning.PARAMETER_NAMES
            return [(part, name) for name in names for part in parts if _is_parameter(part, name)]
        known = {id(part) for part in parts}
        for given in parameters_to_prune:
            is_pair = isinstance(given, (list, tuple)) and len(given) == 2
            if not is_pair or id(given[0]) not in known or not hasattr(*given):
                rule = "pairs of a submodule of the module, no container, and the name of a parameter in it"
                action = "Pass for instance [(model.encoder, 'weight')]."
                raise InvalidArgumentError("parameters_to_prune", rule, given, "ModelPruning", action)
        return parameters_to_prune

    @staticmethod
    def _is_pruning_method(method: Any) -> bool:
        return inspect.isclass(method) and issubclass(method, prune.BasePruningMethod)

    def _torch_function(self) -> tuple[Any, dict[str, Any]]:
        """Return torch's function or method, with its options."""
        is_global, options = self._use_global_unstructured, dict[str, Any]()
        if self._is_pruning_method(self.pruning_fn):
            function: Any = self.pruning_fn
            if not is_global:
                rule, action = "True for a custom pruning method", "Leave it out, or name one of torch's methods."
                raise InvalidArgumentError("use_global_unstructured", rule, is_global, self, action)
        else:
            name: Any = self.pruning_fn.lower() if isinstance(self.pruning_fn, str) else self.pruning_fn
            action = "Pass one of these, or a subclass of `torch.nn.utils.prune.BasePruningMethod`."
            check_one_of(self, list(_METHODS), action, pruning_fn=name)
            given = {"pruning_dim": ("dim", self._pruning_dim), "pruning_norm": ("n", self._pruning_norm)}
            for field in _OPTIONS.get(name, ()):
                key, options[key] = given[field]
                if options[key] is None:
                    raise InvalidArgumentError(field, f"given for {name!r}", None, self, "Pass an int.")
            function = _METHODS[name][is_global]
        if is_global and function.PRUNING_TYPE != "unstructured":
            rule = f"false for {function.__name__}, which is {function.PRUNING_TYPE}"
            raise InvalidArgumentError("use_global_unstructured", rule, is_global, self, "Pass False.")
        return function, options

    # hooks

    def setup(self, trainer: TrainerProtocol, module: Any, stage: str) -> None:
        """Find the parameters, and keep their values, in fit."""
        if stage != "fit":
            return
        self._module = module
        found = self.sanitize_parameters_to_prune(module, self._given, self._parameter_names or ())
        self._parameters_to_prune = self.filter_parameters_to_prune(found)
        self._original_layers = {}
        if self._use_lottery_ticket_hypothesis:
            for idx, (part, name) in enumerate(self._parameters_to_prune):
                if _pruned(part, name)[0] == 0:  # else an earlier fit has left its masks
                    layer = self._original_layers.setdefault(id(part), {"data": deepcopy(part), "names": []})
                    layer["names"].append((idx, name))

    def on_load_checkpoint(self, trainer: TrainerProtocol, module: Any, checkpoint: dict[str, Any]) -> None:
        """Add the masks that a checkpoint's weights have, so that these can be loaded."""
        for name, mask in _masks(checkpoint.get("state_dict", {})):
            _mask(module, name, mask)

    def on_fit_start(self, trainer: TrainerProtocol, module: Any) -> None:
        """Refuse sharded parameters."""
        check_unsharded(module, "a mask covers a whole parameter", self)

    def on_train_epoch_end(self, trainer: TrainerProtocol, module: Any) -> None:
        """Prune, if that is due here. Collective."""
        if self._prune_on_train_epoch_end:
            self._run_pruning(trainer)

    def on_validation_epoch_end(self, trainer: TrainerProtocol, module: Any) -> None:
        """Prune, if that is due here. Collective."""
        if not self._prune_on_train_epoch_end and not trainer.sanity_checking and self._module is not None:
            self._run_pruning(trainer)

    def on_train_end(self, trainer: TrainerProtocol, module: Any) -> None:
        """Apply the masks for good, unless they are to stay."""
        if self._make_pruning_permanent:
            self.make_pruning_permanent(module)

    def teardown(self, trainer: TrainerProtocol, module: Any, stage: str) -> None:
        """Drop the reference to the module."""
        self._module = None

    def on_save_checkpoint(self, trainer: TrainerProtocol, module: Any, checkpoint: dict[str, Any]) -> None:
        """Save the weights with their masks applied, unless these are to stay."""
        if not self._make_pruning_permanent:
            return
        weights = dict(checkpoint["state_dict"])
        for name, _ in _masks(checkpoint["state_dict"]):
            original = weights.pop(f"{name}_orig")
            weights[name] = weights.pop(f"{name}_mask").to(original.dtype) * original
        checkpoint["state_dict"] = weights

    def state_dict(self) -> dict[str, Any]:
        """Return the masks by name of the parameter, and the values from before training."""
        if self._module is None:
            return {}
        weights = dict((*self._module.named_parameters(), *self._module.named_buffers()))
        masks = {name: mask.clone() for name, mask in _masks(weights)}
        layers = self._original_layers.values()
        originals = {
            str(idx): getattr(layer["data"], name).detach().clone() for layer in layers for idx, name in layer["names"]
        }
        return {"masks": masks, "originals": originals}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore masks and values."""
        if self._module is None or not state_dict:
            return
        for name, mask in state_dict["masks"].items():
            _mask(self._module, name, mask)
        for layer in self._original_layers.values():
            for idx, name in layer["names"]:
                original = state_dict["originals"].get(str(idx))
                if original is not None:
                    getattr(layer["data"], name).data.copy_(original)

    def _run_pruning(self, trainer: TrainerProtocol) -> None:
        epoch = trainer.current_epoch
        amount = self.amount(epoch) if callable(self.amount) else self.amount
        if not _is_due(self._apply_pruning, epoch) or not amount:
            return
        self.apply_pruning(amount)
        if _is_due(self._use_lottery_ticket_hypothesis, epoch):
            self.apply_lottery_ticket_hypothesis()
        if trainer.strategy.world_size > 1:
            self._agree(trainer)

    def _agree(self, trainer: TrainerProtocol) -> None:
        """Take masks and values of rank 0. Collective."""
        pairs = [(module, name) for module, name in self._parameters_to_prune if hasattr(module, f"{name}_mask")]
        own = [(getattr(module, f"{name}_mask").cpu(), _trained(module, name).data.cpu()) for module, name in pairs]
        for (module, name), (mask, value) in zip(pairs, trainer.strategy.broadcast(own), strict=True):
            getattr(module, f"{name}_mask").copy_(mask)
            _trained(module, name).data.copy_(value)

    def _print(self, before: list[tuple[int, int]], amount: int | float) -> None:
        distributed = torch.distributed
        if distributed.is_available() and distributed.is_initialized() and distributed.get_rank() != 0:
            return
        method = self._function.__name__
        after = [_pruned(module, name) for module, name in self._parameters_to_prune]
        total = sum(size for _, size in after)
        zeros = [sum(number for number, _ in numbers) for numbers in (before, after)]
        print(f"Applied `{method}`. Pruned: {_share(zeros[0], total)} -> {_share(zeros[1], total)}", flush=True)
        for (module, name), (old, _), (new, size) in zip(self._parameters_to_prune, before, after, strict=True):
            if self._verbose > 1:
                shares = f"{_share(old, size)} -> {_share(new, size)}"
                print(f"Applied `{method}` to `{module!r}.{name}` with amount={amount}. Pruned: {shares}", flush=True)


def _is_due(choice: bool | Callable[[int], bool], epoch: int) -> bool:
    return bool(choice(epoch) if callable(choice) else choice)


def _is_parameter(module: nn.Module, name: str) -> bool:
    return isinstance(getattr(module, f"{name}_orig", getattr(module, name, None)), nn.Parameter)


def _trained(module: nn.Module, name: str) -> Tensor:
    """Return the parameter that the optimizer trains."""
    found: Tensor = getattr(module, f"{name}_orig" if hasattr(module, f"{name}_orig") else name)
    return found


def _pruned(module: nn.Module, name: str) -> tuple[int, int]:
    """Return how many elements of a parameter are pruned, of how many."""
    mask = getattr(module, f"{name}_mask", None)
    return (0, getattr(module, name).numel()) if mask is None else (int((mask == 0).sum()), mask.numel())


def _share(number: int, total: int) -> str:
    return f"{number}/{total} ({number / max(total, 1):.2%})"


def _masks(weights: Mapping[str, Tensor]) -> list[tuple[str, Tensor]]:
    """Return names of pruned parameters among weights, with their masks."""
    names = [name.removesuffix("_mask") for name in weights if name.endswith("_mask")]
    return [(name, weights[f"{name}_mask"]) for name in names if f"{name}_orig" in weights]


def _mask(module: nn.Module, path: str, mask: Tensor) -> None:
    """Give a parameter a mask, unless it has one."""
    owner, _, name = path.rpartition(".")
    part = module.get_submodule(owner)
    if f"{name}_orig" in part._parameters:
        getattr(part, f"{name}_mask").copy_(mask)
    else:
        with _in_order([part]):
            prune.custom_from_mask(part, name, mask.to(getattr(part, name).device))  # type: ignore[no-untyped-call]


@contextmanager
def _in_order(parts: Iterable[nn.Module]) -> Iterator[None]:
    """Keep the order of parameters, by which optimizers load states, while functions of torch rename some."""
    before = [(part, list(part._parameters)) for part in parts]
    yield
    for part, names in before:
        for name in names:
            renamed = (name, f"{name}_orig", name.removesuffix("_orig"))
            now = next(one for one in renamed if one in part._parameters)
            part._parameters[now] = part._parameters.pop(now)
