"""The contract of public surfaces, on small trees of packages."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from public_imports import ROOT, main, undeclared_imports

MakeTree = Callable[..., Path]


@pytest.fixture
def make_tree(tmp_path: Path) -> MakeTree:
    """Write two packages, `engine` (which another may import in part) and `car`, whose one module is `code`."""

    def make(code: str, *, file: str = "packages/car/src/camshaft/car/drive.py", readme: str = "") -> Path:
        engine = tmp_path / "packages" / "engine" / "src" / "camshaft" / "engine"
        files = {
            engine / "__init__.py": "",
            engine / "__init__.pyi": "from camshaft.engine.start import start\nfrom camshaft.engine.oil import Oil\n",
            engine / "start.py": "def start(): ...\n",
            engine / "oil.py": "class Oil: ...\n",
            engine / "valves" / "__init__.py": "",
            engine / "valves" / "spring.py": "",
            tmp_path / "packages" / "engine" / "README.md": readme,
            tmp_path / "packages" / "car" / "README.md": "",
            tmp_path / "packages" / "car" / "src" / "camshaft" / "car" / "__init__.py": "",
            tmp_path / file: code,
        }
        for path, text in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return tmp_path

    return make


def undeclared_modules(root: Path) -> list[str]:
    return [one.module for one in undeclared_imports(root)]


@pytest.mark.parametrize(
    "code",
    [
        "import camshaft.engine",
        "from camshaft import engine",
        "from camshaft.engine import Oil",
        "from camshaft.engine import start  # the function, although a module has that name",
        "from camshaft.car import drive",
        "import camshaft_extras.engine.oil",
        "text = 'see camshaft.engine.oil for more'",
    ],
)
def test_top_levels_and_modules_of_its_own_are_allowed(make_tree: MakeTree, code: str) -> None:
    assert undeclared_modules(make_tree(code)) == []


@pytest.mark.parametrize(
    "code",
    [
        "import camshaft.engine.oil",
        "import camshaft.engine.oil as oil",
        "from camshaft.engine.oil import Oil",
        "from camshaft.engine import oil",
        "from ..engine.oil import Oil",
        "from ..engine import oil",
        "def later():\n    from camshaft.engine.oil import Oil",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from camshaft.engine.oil import Oil",
        "place = {'camshaft.engine.oil': 'Oil'}",
        "monkeypatch.setattr('camshaft.engine.oil.Oil', None)",
    ],
)
def test_another_module_of_a_sibling_is_not(make_tree: MakeTree, code: str) -> None:
    assert undeclared_modules(make_tree(code)) == ["camshaft.engine.oil"]


@pytest.mark.parametrize(
    "file",
    [
        "packages/car/tests/test_drive.py",
        "packages/car/src/camshaft/car/drive.pyi",
        "examples/drive.py",
        "docs/tutorials_source/drive.py",
        "test_support/drive.py",
    ],
)
def test_tests_and_examples_are_held_to_it_too(make_tree: MakeTree, file: str) -> None:
    root = make_tree("\nfrom camshaft.engine.valves.spring import Spring", file=file)
    assert [(one.file, one.line, one.module) for one in undeclared_imports(root)] == [
        (file, 2, "camshaft.engine.valves.spring")
    ]


def test_modules_that_the_readme_lists_are_public_without_those_below_them(make_tree: MakeTree) -> None:
    readme = "# Engine\n\n## Public modules\n\n- `camshaft.engine.valves`\n\n## More\n\n`camshaft.engine.oil`\n"
    code = "import camshaft.engine.valves\nimport camshaft.engine.valves.spring\nimport camshaft.engine.oil"
    assert undeclared_modules(make_tree(code, readme=readme)) == [
        "camshaft.engine.valves.spring",
        "camshaft.engine.oil",
    ]


def test_a_listed_module_that_does_not_exist_is_an_error(make_tree: MakeTree) -> None:
    root = make_tree("", readme="## Public modules\n\n`camshaft.engine.water`\n")
    with pytest.raises(ValueError, match=r"Public modules must be modules of the package.*`camshaft\.engine\.water`"):
        undeclared_imports(root)


@pytest.mark.parametrize(("code", "status"), [("import camshaft.engine.oil", 1), ("import camshaft.engine", 0)])
def test_the_check_fails_with_what_it_found(
    make_tree: MakeTree, capsys: pytest.CaptureFixture[str], code: str, status: int
) -> None:
    assert main(make_tree(code)) == status
    assert ("drive.py:1: `camshaft.engine.oil` is not public." in capsys.readouterr().out) == bool(status)


def test_this_tree_passes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(ROOT) == 0, capsys.readouterr().out
