"""The planted faults: every entry fits the tree, and what is said of each comes from its tests alone."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import planted_faults
from planted_faults import FAULTS, ROOT, Copy, Fault, Outcome

MODULE = "packages/engine/src/engine.py"
TESTS = "packages/engine/tests/test_engine.py"


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a package of two functions, and tests of one of them."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # plugins take longer than the tests
    files = {
        MODULE: "def doubled(number):\n    return number * 2\n\n\ndef halved(number):\n    return number / 2\n",
        TESTS: (
            "from engine import doubled\n\n\ndef test_doubled():\n    assert doubled(3) == 6\n\n\n"
            "def test_of_nothing():\n    pass\n"
        ),
    }
    for name, text in files.items():
        (tmp_path / "tree" / name).parent.mkdir(parents=True)
        (tmp_path / "tree" / name).write_text(text)
    subprocess.run(["git", "init", "-q"], cwd=tmp_path / "tree", check=True)
    return tmp_path / "tree"


def fault(old: str, new: str, *tests: str) -> Fault:
    return Fault("a fault", MODULE, old, new, tests or (TESTS,))


def outcome_of(one: Fault, tree: Path) -> Outcome:
    return Copy(tree, tree.parent / "copy").try_fault(one)


def test_every_entry_fits_the_tree() -> None:
    faults = planted_faults.in_tree(planted_faults.read_faults(ROOT / FAULTS), ROOT)
    reasons = {one.name: planted_faults.stale(one, ROOT) for one in faults}
    assert {name: reason for name, reason in reasons.items() if reason is not None} == {}


def test_every_package_has_planted_faults() -> None:
    faults = planted_faults.read_faults(ROOT / FAULTS)
    packages = {path.parent.name for path in ROOT.glob("packages/*/pyproject.toml")}
    assert packages <= {one.package for one in faults}


@pytest.mark.parametrize(
    ("old", "new", "tests", "reason"),
    [
        ("number * 2", "number * 3", (), None),
        ("number", "count", (), "4 times"),
        ("number ** 2", "number", (), "0 times"),
        ("number * 2", "number * 2", (), "the same"),
        ("number * 2", "number *", (), "no Python"),
        ("number * 2", "number * 3", ("packages/engine/tests/test_gears.py -k of",), "test_gears.py does not exist"),
        ("number * 2", "number * 3", (f"{TESTS} -k 'doubled and not gears'",), "gears is not in"),
        ("number * 2", "number * 3", (f"{TESTS} -k 'doubled and not nothing'",), None),
    ],
)
def test_an_entry_is_stale_if_it_cannot_be_planted_or_run(
    tree: Path, old: str, new: str, tests: tuple[str, ...], reason: str | None
) -> None:
    found = planted_faults.stale(fault(old, new, *tests), tree)
    assert found is None if reason is None else reason in str(found)


def test_faults_of_a_package_that_the_tree_is_without_are_left_out(tree: Path) -> None:
    here, elsewhere = fault("number * 2", "number"), Fault("a", "packages/gears/src/gears.py", "a", "b", (TESTS,))
    assert planted_faults.in_tree([here, elsewhere], tree) == [here]


@pytest.mark.parametrize("mark", ["", "processes"])
def test_a_fault_that_fails_a_test_is_noticed_and_taken_out_again(tree: Path, mark: str) -> None:
    if mark:
        (tree / TESTS).write_text(f"import pytest\n\npytestmark = pytest.mark.{mark}\n{(tree / TESTS).read_text()}")
    copy = Copy(tree, tree.parent / "copy")
    outcome = copy.try_fault(fault("number * 2", "number * 3", f"{TESTS} -m '{mark}'"))
    assert outcome.failed == (f"{TESTS}::test_doubled",)
    assert copy.failing_without_fault(outcome.failed) == []
    assert (copy.folder / MODULE).read_text() == (tree / MODULE).read_text()


def test_a_fault_that_fails_no_test_is_not_noticed(tree: Path) -> None:
    assert outcome_of(fault("number / 2", "number / 3"), tree).failed == ()


def test_tests_that_do_not_run_notice_nothing(tree: Path) -> None:
    outcome = outcome_of(fault("number * 2", "number * 3", f"{TESTS} -k gears"), tree)
    assert outcome.failed == ()
    assert "status 5" in outcome.reason


def test_a_test_that_fails_without_the_fault_notices_nothing(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tree / TESTS).write_text("def test_broken():\n    assert False\n")
    copy = Copy(tree, tree.parent / "copy")
    outcome = copy.try_fault(fault("number * 2", "number * 3"))
    anyway = copy.failing_without_fault(outcome.failed)
    assert planted_faults.report([outcome], anyway) == 1
    assert "NOT NOTICED: engine: a fault" in capsys.readouterr().out


def test_faults_are_chosen_by_parts_of_their_names() -> None:
    faults = [Fault(name, MODULE, "a", "b", (TESTS,)) for name in ("a lost fsync", "a lost rename")]
    assert planted_faults.choose(faults, []) == faults
    assert planted_faults.choose(faults, ["rename"]) == faults[1:]
    with pytest.raises(ValueError, match="no name holds 'gears'"):
        planted_faults.choose(faults, ["gears"])


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ("[[fault]]\nname = 'a'\n", "must have the keys"),
        (2 * "[[fault]]\nname = 'a'\nfile = ''\nold = ''\nnew = ''\ntests = []\n", "'a' is there twice"),
    ],
)
def test_entries_that_lack_something_or_share_a_name_are_refused(tmp_path: Path, entries: str, message: str) -> None:
    (tmp_path / "faults.toml").write_text(entries)
    with pytest.raises(ValueError, match=message):
        planted_faults.read_faults(tmp_path / "faults.toml")
