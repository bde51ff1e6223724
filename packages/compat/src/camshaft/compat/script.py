"""The run of a script of earlier releases: `python -m camshaft.compat run SCRIPT`, or `run -m MODULE`.

The file is run as Python would run it, with the import names of earlier code installed (see
`camshaft.compat.names`), in every process that the trainer or a `DataLoader` starts as well.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from camshaft.compat.names.finder import install_aliases

_NAME = "camshaft.compat.script"
_WHAT = "CAMSHAFT_OLD_SCRIPT"
"""The variable that names the script for spawned processes: a path, or a module after "-m "."""

USAGE = """usage: python -m camshaft.compat run SCRIPT [ARGUMENTS ...]
       python -m camshaft.compat run -m MODULE [ARGUMENTS ...]

Runs a file that imports pytorch_lightning or lightning: these names stand for camshaft's."""


def main(words: Sequence[str]) -> int:
    """Run a script or module with its arguments, and return the exit code.

    Args:
        words: The arguments after `run` in the command line.

    Returns:
        0, or 2 without a script, after a message on the standard error. Errors of the script are not caught.
    """
    if list(words[:1]) in (["-h"], ["--help"]):
        print(USAGE)
        return 0
    is_module = list(words[:1]) == ["-m"]
    words = words[1:] if is_module else words
    if not words or words[0].startswith("-"):
        print(USAGE, file=sys.stderr)
        return 2
    if not is_module and not Path(words[0]).is_file():
        print(f"{USAGE}\n\nThere is no file {words[0]}.", file=sys.stderr)
        return 2
    os.environ[_WHAT] = f"-m {words[0]}" if is_module else os.path.abspath(words[0])
    if not is_module:
        sys.path[0] = str(Path(words[0]).resolve().parent)  # as Python sets it; before it was the working folder
    install_aliases()
    code, facts = _found(os.environ[_WHAT])
    sys.argv[:] = [facts["__file__"] if is_module else words[0], *words[1:]]
    module = ModuleType("__main__")
    # Processes that are started afresh import this module in place of the script; see below.
    module.__dict__.update(facts, __spec__=find_spec(_NAME), __builtins__=__builtins__)
    sys.modules["__main__"] = module
    exec(code, module.__dict__)
    return 0


def _found(what: str) -> tuple[CodeType, dict[str, Any]]:
    """Return the code of a script or module, and its attributes such as `__file__`.

    Raises:
        ModuleNotFoundError: If there is no such module.
    """
    if not what.startswith("-m "):
        with io.open_code(what) as file:
            return compile(file.read(), what, "exec"), {"__file__": what, "__package__": None}
    name = what.removeprefix("-m ")
    spec = find_spec(name)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = find_spec(f"{name}.__main__")
    loader: Any = spec.loader if spec is not None else None
    code = loader.get_code(spec.name) if spec is not None and hasattr(loader, "get_code") else None
    if spec is None or code is None:
        message = f"There is no module {name!r} to run. Name one that is installed or lies in the working folder."
        raise ModuleNotFoundError(message, name=name)
    return code, {"__file__": spec.origin, "__package__": spec.parent}


if __name__ == "__mp_main__":
    # A process of `multiprocessing` that was started afresh looks here for what its parent's script defines.
    install_aliases()
    _code, _facts = _found(os.environ[_WHAT])
    globals().update(_facts)
    exec(_code, globals())
