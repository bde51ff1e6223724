from __future__ import annotations

import subprocess
import sys

import pytest

import camshaft.hooks_core as package

EVERYTHING = (
    "check",
    "conformance",
    "grammar",
    "eras.inspection",
    "eras.orders",
    "eras.releases",
    "protocols",
    "pytest_plugin",
    "trace",
    "support.transfer",
    "__main__",
)


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", ["", *EVERYTHING])
def test_importing_leaves_torch_and_numpy_alone(name: str) -> None:
    module = f"camshaft.hooks_core{'.' if name else ''}{name}"
    loaded = run(f"import sys, {module}; print('torch' in sys.modules, 'numpy' in sys.modules)")
    assert loaded.split() == ["False", "False"]


def loaded_by(statement: str) -> set[str]:
    prefix = "camshaft.hooks_core"
    printed = run(f"import sys; {statement}; print(*[name for name in sys.modules if name.startswith('{prefix}')])")
    return {name.removeprefix(prefix).removeprefix(".") for name in printed.split()}


def test_the_package_imports_what_is_asked_for() -> None:
    assert loaded_by("import camshaft.hooks_core") == {"", "support", "support.on_demand"}


def test_what_only_checks_earlier_eras_and_strategies_need_is_not_imported_with_dispatch() -> None:
    loaded = loaded_by("from camshaft.hooks_core import Callback, Hooks, resolve")
    assert loaded & {*EVERYTHING, "strategy_defaults"} == {"support.transfer"}


def test_the_package_exports_what_it_names() -> None:
    assert sorted(package.__all__) == sorted(set(package.__all__))
    for name in package.__all__:
        assert getattr(package, name) is not None
