"""Every block of code in the pages and docstrings runs, and prints what the page says that it prints.

- ```` ```python ```` blocks of a page run from top to bottom in one namespace, in an empty folder; doctests of a file's
  docstrings in the namespace of its module.
- A ```` ```text ```` block below the comment `output` is what the block before printed; `...` stands for any text.
- Programs, options and sessions in ```` ```bash ```` blocks are those that there are: see `command_lines`.
- The comment `skip: next -- REASON` leaves out the block that follows.

A comment is a line `% ...` of MyST, or `<!-- ... -->` where the page is read on other sites, too. A comment
`invisible-code-block: python` holds code that the page needs and does not show.
"""

from __future__ import annotations

import contextlib
import doctest
import importlib
import io
import os
import re
import shutil
import subprocess
import sys
import types
from collections.abc import Iterable, Iterator
from pathlib import Path
from unittest import SkipTest

import pytest
import torch
import torch.distributed as dist
from command_lines import ROOT, check_command, commands
from sybil import Document, Example, Region
from sybil.document import PythonDocStringDocument
from sybil.evaluators.doctest import OutputChecker
from sybil.evaluators.python import PythonEvaluator
from sybil.example import NotEvaluated
from sybil.parsers.abstract.skip import AbstractSkipParser
from sybil.parsers.markdown.lexers import DirectiveInHTMLCommentLexer
from sybil.parsers.myst import CodeBlockParser
from sybil.parsers.myst.lexers import DirectiveInPercentCommentLexer
from sybil.parsers.rest import DocTestParser
from sybil.parsers.rest.lexers import DirectiveInCommentLexer

from camshaft.compat import remove_aliases

SHELLS = ("bash", "console")
CHECKED = ("python", *SHELLS)
NOT_RUN = ("text", "yaml", "json", "toml", "diff", "html", "css", "mermaid", "javascript")
REASON = re.compile(r"""next\s+(?:--\s*|["'])(?P<reason>\w.*?)["']?$""")
OUTPUT = re.compile(r"^(?:%[ ]output|<!--+[ ]output[ ]--+>)\n\s*```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FENCE = re.compile(r"^[ \t]*(`{3,}|:{3,})(?P<language>\S*)[^\n]*\n.*?^[ \t]*\1$", re.MULTILINE | re.DOTALL)
RULES = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE

LISTED = subprocess.run(
    ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md", "*.py"],
    cwd=ROOT, capture_output=True, text=True, check=True,
).stdout.split()  # fmt: skip
PAGE_PATHS = re.compile(r"(README|CONTRIBUTING)\.md|(docs|packages|certify|benchmarks|ecosystem)/(.*/)?\w[^/]*\.md")
PAGES = [path for path in LISTED if PAGE_PATHS.fullmatch(path) and (ROOT / path).is_file()]
SOURCES = [path for path in LISTED if path.startswith("packages/") and "/src/" in path]


class PrintingPython(PythonEvaluator):
    """Run a block, and keep what it printed."""

    def __call__(self, example: Example) -> None:
        printed = io.StringIO()
        example.document.printed = printed
        with contextlib.redirect_stdout(printed):
            super().__call__(example)


class Skips(AbstractSkipParser):
    """Comments that leave out the next block, and say why."""

    def __init__(self) -> None:
        comments = (DirectiveInPercentCommentLexer, DirectiveInHTMLCommentLexer, DirectiveInCommentLexer)
        super().__init__([lexer("skip") for lexer in comments])

    def __call__(self, document: Document) -> Iterable[Region]:
        for lexed in self.lexers(document):
            found = REASON.match(lexed.lexemes["arguments"].strip())
            if found is None:
                line = document.line_column(lexed.start)
                raise ValueError(f"A skipped block must have a reason, but {document.path}, {line} has none.")
            yield Region(lexed.start, lexed.end, ("next", repr(found["reason"])), self.skipper)


def outputs(document: Document) -> Iterator[Region]:
    """Find the outputs that a page promises."""

    def compare(example: Example) -> str | None:
        printed = example.document.__dict__.pop("printed", None)
        if printed is None:
            return "No block that ran stands before this output."
        checker, wanted = OutputChecker(), doctest.Example("", example.parsed)
        if checker.check_output(wanted.want, printed.getvalue(), RULES):
            return None
        return checker.output_difference(wanted, printed.getvalue(), RULES)

    for match in OUTPUT.finditer(document.text):
        yield Region(match.start(), match.end(), match[1], compare)


def parsers(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    def check_shell(example: Example) -> None:
        forget_lightning(monkeypatch)
        for words in commands(example.parsed):
            check_command(words, monkeypatch)

    shells = [CodeBlockParser(language, check_shell) for language in SHELLS]
    return [Skips(), CodeBlockParser("python", PrintingPython()), outputs, *shells]


def forget_lightning(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Lightning count as not imported, whatever blocks ran before: a new process begins so."""
    for name in list(sys.modules):
        if name.partition(".")[0] in ("lightning", "pytorch_lightning", "lightning_fabric"):
            monkeypatch.delitem(sys.modules, name)


def run(document: Document) -> None:
    """Run the blocks of a page in the current folder. A skipped one is as if it were not there."""
    for example in document:
        try:
            example.evaluate()
        except SkipTest:
            continue
        except Exception as error:
            error.add_note(f"in the block at {os.path.relpath(document.path, ROOT)}:{example.line}")
            raise


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder in which a page runs, with the files that commands of the pages name."""
    monkeypatch.chdir(tmp_path)
    torch.set_num_threads(1)  # the pages' networks are small
    (tmp_path / "my_project").mkdir()
    for path in ("mymodule.py", "my_project/model.py", "checks.py"):
        shutil.copy(Path(__file__).with_name("mymodule.py"), tmp_path / path)
    for path in ("train.py", "old_script.py"):
        (tmp_path / path).touch()
    (tmp_path / "run.yaml").write_text("model: {class_path: mymodule.Net}\ndata: {class_path: mymodule.Data}\n")
    modules = set(sys.modules)
    yield tmp_path
    if dist.is_initialized():
        dist.destroy_process_group()
    remove_aliases()
    for name in set(sys.modules) - modules:
        if name.partition(".")[0] in ("mymodule", "my_project", "checks"):
            del sys.modules[name]


@pytest.fixture
def main_module(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A module for a page's code, as if it were the program that Python was started with."""
    module = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", module)
    monkeypatch.setattr(sys, "argv", ["page.py"])
    return module


@pytest.mark.parametrize("path", PAGES)
def test_the_blocks_of_a_page_run(
    path: str, folder: Path, main_module: types.ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = Document.parse(str(ROOT / path), *parsers(monkeypatch))
    document.namespace = main_module.__dict__
    run(document)


@pytest.mark.parametrize("path", PAGES)
def test_every_block_of_a_page_says_its_language(path: str) -> None:
    document = Document.parse(str(ROOT / path), *parsers(pytest.MonkeyPatch()))
    found = {region.start: region for _, region in document.regions}
    for fence in FENCE.finditer(document.text):
        line = f"{path}, {document.line_column(fence.start())}"
        language = fence["language"]
        assert language in CHECKED + NOT_RUN or language.startswith("{"), f"{line}: unknown language {language!r}"
        assert language not in CHECKED or fence.start() in found, f"{line}: the block is not found by the parsers"


class Docstrings(PythonDocStringDocument):
    """The docstrings of a module of a namespace package."""

    def import_document(self, example: Example) -> None:
        module = Path(self.path).relative_to(ROOT).with_suffix("").parts[3:]
        self.namespace.update(vars(importlib.import_module(".".join(module).removesuffix(".__init__"))))
        self.pop_evaluator(self.import_document)
        raise NotEvaluated


def has_example(path: str) -> bool:
    text = (ROOT / path).read_text(encoding="utf-8")
    return ">>> " in text or "```" in text


@pytest.mark.parametrize("path", [path for path in SOURCES if has_example(path)])
def test_the_examples_of_docstrings_run(path: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / path).read_text(encoding="utf-8")
    forget_lightning(monkeypatch)
    assert "doctest: +SKIP" not in text, "Skip a block with `.. skip: next -- REASON`, which says why."
    run(Docstrings.parse(str(ROOT / path), DocTestParser(RULES), *parsers(monkeypatch)))


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ("```python\n1 / 0\n```\n", "division by zero"),
        ("```python\nprint(1)\n```\n\n% output\n```text\n2\n```\n", "Expected"),
        ("% output\n```text\n2\n```\n", "No block that ran"),
        ("% skip: next\n\n```python\n1 / 0\n```\n", "must have a reason"),
        ("```bash\nnox -s no-such-session\n```\n", "must be among the sessions"),
        ("```bash\npython -m camshaft.hooks_core show fit --no-such-option\n```\n", "refuses"),
        ("```bash\npython -m pip install ./packages/no-such-package\n```\n", "must be a package"),
        ("```bash\npython examples/no_such_file.py\n```\n", "must be a file"),
        ("```bash\nno-such-program\n```\n", "must be a command"),
    ],
)
def test_a_broken_block_is_noticed(block: str, message: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "page.md").write_text(block)
    with pytest.raises((Exception, SystemExit), match=message):
        run(Document.parse(str(folder / "page.md"), *parsers(monkeypatch)))


def test_a_block_is_skipped_for_a_reason_and_hidden_code_runs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for start, end in (("% ", ""), ("<!-- ", " -->")):
        text = f"{start}skip: next -- needs a cluster{end}\n\n```python\n1 / 0\n```\n\n"
        text += "<!-- invisible-code-block: python\nnumber = 3\n-->\n\n```python\nprint(number)\n```\n\n"
        text += f"{start}output{end}\n```text\n3\n```\n"
        (folder / "page.md").write_text(text)
        run(Document.parse(str(folder / "page.md"), *parsers(monkeypatch)))
