"""Command lines for modules and data modules; they need jsonargparse, of the extra `cli`."""

from typing import Any

from camshaft.hooks_core.support.on_demand import on_demand

_get, __dir__, __all__ = on_demand(__name__)

_DISTRIBUTIONS = {
    "docstring_parser": "docstring-parser",
    "jsonargparse": "jsonargparse",
    "yaml": "PyYAML",
}
"""By module, the distributions that the extra brings along."""


def __getattr__(name: str) -> Any:
    try:
        return _get(name)
    except ModuleNotFoundError as error:
        missing = _DISTRIBUTIONS.get((error.name or "").partition(".")[0])
        if missing is None:
            raise
        message = f"The command line needs {missing}. Install the extra: camshaft-trainer[cli]."
        raise ModuleNotFoundError(message, name=error.name) from error
