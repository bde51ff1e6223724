"""What the packages import: only what they declare, and hooks_core without torch.

Who of the packages may import whom is a contract of import-linter, see pyproject.toml and `nox -s imports`.
"""

from __future__ import annotations

import ast
import functools
import importlib
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PACKAGES = sorted(Path(__file__).parents[1].glob("packages/*/pyproject.toml"))
# Imported inside functions that matter only to users who have it: those who hand over tensors, or draw from
# numpy's generator.
USED_WHERE_PRESENT = {
    "hooks-core": {"torch"},
    "loops": {"numpy"},
    "trainer": {"numpy", "pyyaml"},
    "compat": {"fsspec", "numpy", "omegaconf", "psutil", "scikit-learn", "sklearn", "torchvision"},
}
HOOKS_CORE = next(path.parent for path in PACKAGES if path.parent.name == "hooks-core")


def is_type_checking(test: ast.expr) -> bool:
    return ast.unparse(test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def imports_of(node: ast.AST, *, inside_functions: bool) -> Iterator[tuple[str, int]]:
    """(module name, line) of each absolute import that can take place, so none under `if TYPE_CHECKING`."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from ((alias.name, child.lineno) for alias in child.names)
        elif isinstance(child, ast.ImportFrom) and child.level == 0:
            yield str(child.module), child.lineno
        elif isinstance(child, ast.If) and is_type_checking(child.test):
            for statement in child.orelse:
                yield from imports_of(ast.Module([statement], []), inside_functions=inside_functions)
        elif inside_functions or not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from imports_of(child, inside_functions=inside_functions)


def imports_in(package: Path, *, inside_functions: bool) -> Iterator[tuple[str, str]]:
    """(module name, "file:line") of the package's imports from outside the standard library."""
    files = sorted([*package.glob("src/**/*.py"), *package.glob("src/**/*.pyi")])
    assert files, f"{package} holds no source."
    for file in files:
        for name, line in imports_of(ast.parse(file.read_text(encoding="utf-8")), inside_functions=inside_functions):
            if name.partition(".")[0] not in sys.stdlib_module_names:
                yield name, f"{file.relative_to(package)}:{line}"


@functools.cache
def installed_modules() -> Mapping[str, list[str]]:
    return packages_distributions()


def distributions_of(module_name: str) -> set[str]:
    """The distributions that can provide a module; its own name where nothing installed does."""
    top, _, rest = module_name.partition(".")
    if top == "camshaft":
        return {canonicalize_name(f"camshaft-{rest.partition('.')[0]}")}
    return {canonicalize_name(name) for name in installed_modules().get(top, [top])}


@pytest.mark.parametrize("pyproject", PACKAGES, ids=lambda path: path.parent.name)
def test_every_import_is_of_a_declared_dependency(pyproject: Path) -> None:
    project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
    extras = project.get("optional-dependencies", {})
    lines = [
        *project["dependencies"],
        *(line for extra in extras if extra != "test" for line in extras[extra]),
    ]
    declared = {canonicalize_name(Requirement(line).name) for line in lines} | {project["name"]}
    declared |= USED_WHERE_PRESENT.get(pyproject.parent.name, set())
    undeclared = [
        f"{where} imports {name}"
        for name, where in imports_in(pyproject.parent, inside_functions=True)
        if not distributions_of(name) & declared
    ]
    assert undeclared == []


def test_hooks_core_imports_only_attrs_and_the_standard_library_at_module_level() -> None:
    strangers = [
        f"{where} imports {name}"
        for name, where in imports_in(HOOKS_CORE, inside_functions=False)
        if not name.startswith("camshaft.hooks_core")
        and name.partition(".")[0] not in ("attr", "attrs")
        and not ("pytest_plugin" in where and name.partition(".")[0] in ("pytest", "_pytest"))
    ]
    assert strangers == []


def test_importing_every_module_of_hooks_core_loads_no_torch() -> None:
    program = (
        "import importlib, pkgutil, sys\n"
        "import camshaft.hooks_core as package\n"
        "for found in pkgutil.walk_packages(package.__path__, package.__name__ + '.'):\n"
        "    if not found.name.endswith('.__main__'):\n"
        "        importlib.import_module(found.name)\n"
        "print(*sorted({name.partition('.')[0] for name in sys.modules} & {'torch', 'numpy', 'lightning'}))\n"
    )
    loaded = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    assert loaded.split() == []


def test_every_name_of_a_stub_is_exported_for_type_checkers_and_at_run_time() -> None:
    stubs = [stub for pyproject in PACKAGES for stub in sorted(pyproject.parent.glob("src/**/*.pyi"))]
    assert len(stubs) > 5
    for stub in stubs:
        module = importlib.import_module(stub.parent.as_posix().partition("/src/")[2].replace("/", "."))
        tree = ast.parse(stub.read_text(encoding="utf-8"))
        names = {alias.name: alias.asname for node in tree.body for alias in getattr(node, "names", ())}
        assert {name for name, other in names.items() if name != other} == set()
        assert all(getattr(module, name, None) is not None for name in names)


def test_no_package_owns_the_namespace() -> None:
    owners = [str(path) for pyproject in PACKAGES for path in pyproject.parent.glob("src/camshaft/__init__.py")]
    assert owners == []
