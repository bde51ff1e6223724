"""Choosing a precision by its name."""

from __future__ import annotations

from camshaft.hooks_core.support.devices import TYPES_WITHOUT_FLOAT64
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

    Args:
        name: One of these, or a `Precision`, which is returned as it is.
        device_type: Type of the device, such as "cuda".

    Raises:
        ValueError: If the name is unknown, or the device type has no such precision.
    """
    if isinstance(name, Precision):
        return name
    is_name = isinstance(name, (str, int)) and not isinstance(name, bool)
    full_name = _ALIASES.get(str(name), str(name)) if is_name else ""
    rule = f"one of {', '.join(PRECISIONS)} or a Precision"
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
