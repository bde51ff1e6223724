"""Checks that packages meet through what is public: python .ci/public_imports.py

Code of one package, and its tests, may import another package's top level and the modules that the other's README
lists in backquotes, with their import path, under a heading "Public modules". Examples, and what
tests share, may import no more than that. Everything else is an undeclared import, and fails the check.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# In no package: models of how to use them, and what tests share.
OTHER_FOLDERS = ("examples", "docs/tutorials_source", "test_support")
HEADING = re.compile(r"^#+ (?P<title>.+?)\s*#*$")
IN_BACKQUOTES = re.compile(r"`(camshaft\.\w+(?:\.\w+)+)`")
MODULE_PATH = re.compile(r"camshaft(?:\.\w+)+")


@dataclass(frozen=True, order=True)
class UndeclaredImport:
    folder: str
    file: str
    line: int
    module: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: `{self.module}` is not public."


@dataclass(frozen=True)
class Surfaces:
    """Every module of the tree by its import path, and those of them that other packages may import."""

    files: dict[str, Path]
    public: frozenset[str]

    @classmethod
    def read(cls, root: Path) -> Surfaces:
        """Read the packages under `root`. Raises ValueError where a README lists a module that does not exist."""
        files: dict[str, Path] = {}
        public: set[str] = set()
        for package in sorted((root / "packages").iterdir()):
            own = dict(modules_of(package / "src"))
            listed = public_modules(package / "README.md")
            unknown = sorted(listed - own.keys())
            if unknown:
                raise ValueError(
                    f"Public modules must be modules of the package, but {package / 'README.md'} lists "
                    f"{', '.join(f'`{name}`' for name in unknown)}. Correct the README."
                )
            files |= own
            public |= listed | {name for name in own if name.count(".") == 1}
        return cls(files, frozenset(public))

    def module_in(self, path: str) -> str | None:
        """Return the longest part of a dotted path that is a module of the tree, None if there is none."""
        while path and path not in self.files:
            path = path.rpartition(".")[0]
        return path or None

    def imported_names(self, module: str) -> dict[str, tuple[str, str]]:
        """Return the names that a module, or the stub beside it, imports, with the module and name of each there."""
        file = self.files[module]
        stub = file.with_suffix(".pyi")
        tree = ast.parse((stub if stub.exists() else file).read_text(encoding="utf-8"))
        imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
        return {one.asname or one.name: (node.module or "", one.name) for node in imports for one in node.names}


def modules_of(source: Path) -> Iterator[tuple[str, Path]]:
    for file in sorted(source.glob("camshaft/*/**/*.py")):
        parts = file.relative_to(source).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), file


def public_modules(readme: Path) -> set[str]:
    """Return the import paths in backquotes between the heading "Public modules" and the next heading."""
    listed: set[str] = set()
    is_inside = False
    for line in readme.read_text(encoding="utf-8").splitlines():
        heading = HEADING.match(line)
        if heading:
            is_inside = heading["title"].lower() == "public modules"
        elif is_inside:
            listed |= set(IN_BACKQUOTES.findall(line))
    return listed


def imported_modules(tree: ast.Module, module: str, is_package: bool, surfaces: Surfaces) -> Iterator[tuple[str, int]]:
    """(module, line) of each import of a module of the tree, also under TYPE_CHECKING, in functions, and by a
    string that names one, as `monkeypatch.setattr` and tables of names take it. `module` is where `tree` lies."""
    for node in ast.walk(tree):
        paths: list[str] = []
        if isinstance(node, ast.Import):
            paths = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            start = absolute(node, module, is_package)
            for alias in node.names:
                path = f"{start}.{alias.name}"
                is_name = {path, start} <= surfaces.files.keys() and alias.name in surfaces.imported_names(start)
                paths.append(start if is_name else path)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and MODULE_PATH.fullmatch(node.value):
            paths = [node.value]
        for found in {surfaces.module_in(path) for path in paths} - {None}:
            yield str(found), getattr(node, "lineno", 0)


def absolute(node: ast.ImportFrom, module: str, is_package: bool) -> str:
    """Return the path from which `node` imports."""
    parts = module.split(".")
    levels = node.level - is_package
    base = parts[: len(parts) - levels] if node.level else []
    return ".".join([*base, *([node.module] if node.module else [])])


def undeclared_imports(root: Path) -> list[UndeclaredImport]:
    """Return what the packages under `root`, their tests and the other folders import beyond public modules."""
    surfaces = Surfaces.read(root)
    names = {file: name for name, file in surfaces.files.items()}
    found: set[UndeclaredImport] = set()
    folders = [*sorted(path for path in (root / "packages").iterdir()), *(root / other for other in OTHER_FOLDERS)]
    for folder in folders:
        own = {name.split(".")[1] for name, _ in modules_of(folder / "src")}
        for file in sorted([*folder.rglob("*.py"), *folder.rglob("*.pyi")]):
            tree = ast.parse(file.read_text(encoding="utf-8"))
            name = names.get(file.with_suffix(".py"), file.stem)
            for module, line in imported_modules(tree, name, file.stem == "__init__", surfaces):
                if module not in surfaces.public and module.split(".")[1] not in own:
                    found.add(UndeclaredImport(folder.name, str(file.relative_to(root)), line, module))
    return sorted(found)


def main(root: Path = ROOT) -> int:
    found = undeclared_imports(root)
    if not found:
        print("Packages import nothing of each other but what is public.")
        return 0
    print("\n".join(map(str, found)))
    print(
        'Import the package\'s top level or a module that its README lists under "Public modules", or have the module '
        "listed there."
    )
    return 1


if __name__ == "__main__":
    sys.exit(main())
