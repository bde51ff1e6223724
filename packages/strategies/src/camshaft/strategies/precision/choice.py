"""Choosing a precision by its name."""

from __future__ import annotations

import inspect
from typing import Any

from camshaft.hooks_core.support.devices import TYPES_WITHOUT_FLOAT64
from camshaft.hooks_core.support.messages import must_be
from camshaft.hooks_core.support.registered_names import PRECISIONS as REGISTERED
from camshaft.hooks_core.support.registered_names import load_registered
from camshaft.strategies.checks import require
from camshaft.strategies.precision.formats import TRUE_DTYPES, AutocastPrecision, Precision, TruePrecision

PRECISIONS = ("32-true", "16-mixed", "bf16-mixed", "bf16-true", "16-true", "64-true")
"""Names of the precisions that `choose_precision` knows, without their aliases."""
_ALIASES = {"32": "32-true", "16": "16-mixed", "bf16": "bf16-mixed", "64": "64-true"}


def choose_precision(name: str | int | Precision, device_type: str) -> Precision:
    """Return the precision of a name.

    - "32-true" (32): as modules are made.
    - "bf16-mixed" ("bf16"): parameters as they are made, steps under autocast to bfloat16.
    - "16-mixed" (16): the same with float16, and a gradient scaler; an update whose gradients overflow is skipped.
    - "bf16-true", "16-true", "64-true" (64): parameters, inputs and computation in bfloat16, float16 or float64.

    Other names are looked for among the entry points "camshaft.precisions" of installed distributions: classes of
    precisions, or functions that return one. They are called with `device_type` if they have such a parameter.

    Args:
        name: One of these, or a `Precision`, which is returned as it is.
        device_type: Type of the device, such as "cuda".

    Raises:
        ValueError: If the name is unknown, or the device type has no such precision.
        ImportError: If what a distribution registers under the name cannot be imported.
        TypeError: If it makes no `Precision`.
    """
    if isinstance(name, Precision):
        return name
    is_name = isinstance(name, (str, int)) and not isinstance(name, bool)
    full_name = _ALIASES.get(str(name), str(name)) if is_name else ""
    make = load_registered(REGISTERED, name) if isinstance(name, str) and full_name not in PRECISIONS else None
    if make is not None:
        return _made(make, name, device_type)
    rule = f"one of {', '.join(PRECISIONS)}, a Precision, or the name of one that a distribution registers"
    require(full_name in PRECISIONS, "precision", rule, name, "choose_precision")
    has_it = full_name != "64-true" or device_type not in TYPES_WITHOUT_FLOAT64
    rule = f"any but '64-true' on {device_type!r}, which has no float64"
    require(has_it, "precision", rule, name, "choose_precision", "Pass '32-true'.")
    if full_name == "16-mixed":
        from camshaft.strategies.precision.gradient_scaling import ScaledPrecision  # rarely needed

        return ScaledPrecision(device_type)
    if full_name == "bf16-mixed":
        return AutocastPrecision(device_type)
    return Precision() if full_name == "32-true" else TruePrecision(TRUE_DTYPES[full_name])


def _made(make: Any, name: object, device_type: str) -> Precision:
    """Return the precision that a distribution registers under a name."""
    takes_type = "device_type" in inspect.signature(make).parameters
    precision = make(device_type=device_type) if takes_type else make()
    if not isinstance(precision, Precision):
        rule = f"that of a class of precisions, or of a function that returns one, which {make!r} is not"
        action = "Derive it from `camshaft.strategies.precision.Precision`."
        raise TypeError(must_be("precision", rule, name, "choose_precision", action))
    return precision
