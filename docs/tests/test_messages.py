"""What is read from the sources about errors and warnings: their remedies, and which of them no user sees."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from error_pages import entry
from messages_in_code import Message, messages_of, raised_by_sentence
from sources import Sources


def read(folder: Path, source: str, *, name: str = "one.py", public: tuple[str, ...] = ()) -> dict[str, Message]:
    """Return the messages of a file and of those that were read before, by their texts."""
    (folder / name).write_text(textwrap.dedent(source), encoding="utf-8")
    return {one.text: one for one in messages_of(Sources(folder, "*.py", frozenset(public)))}


@pytest.mark.parametrize(
    ("raised", "remedy"),
    [
        ("ValueError('It is too small. Pass more.')", "Pass more."),
        ("ValueError('It is too small. The least is 2.')", ""),
        ("ValueError('It is too small.')", ""),
        ("ValueError(f'Nothing is named {name}. Did you mean `{other}`?')", "Did you mean `{other}`?"),
        ("ValueError(f'The text is {text} Pass another.')", "Pass another."),
        ("ValueError(f'They differ. Mend what is said below.\\n{report}')", "Mend what is said below."),
        ("ValueError(f'They differ.\\n{report}')", ""),
        ("ValueError(f'Nothing is there: {self.advice}')", "{self.advice}"),
        ("ValueError(f'Nothing is there: {told}')", ""),
        ("ValueError(f'{error} It is left out.')", "{error}"),
        ("ValueError(f'{test.nodeid}: {error}')", "{error}"),
        ("ValueError(f'It cannot be read: {error}')", ""),
        ("ValueError(must_be('size', 'above 0', size, 'Box', 'Pass more.'))", "Pass more."),
        ("SizeError('above 0', size, 'Box', 'Pass more.')", "Pass more."),
    ],
)
def test_the_remedy_is_the_sentence_that_says_what_to_do(tmp_path: Path, raised: str, remedy: str) -> None:
    (message,) = read(tmp_path, f"raise {raised}\n").values()
    assert message.remedy == remedy.replace("self.", "")


def test_what_python_says_itself_is_left_out(tmp_path: Path) -> None:
    source = """
    raise AttributeError(f"module {package!r} has no attribute {name!r}")
    raise AttributeError(f"module {package!r} has no attribute {name!r} any more")
    raise StopIteration
    """
    assert [text for text in read(tmp_path, source)] == ["module {package} has no attribute {name} any more"]


CALLER = """
def caller(text):
    try:
        return {called}(text)
    except {caught} as error:
        {handled}
"""
CALLED = """
def {called}(text):
    raise ValueError("no text at all")
"""


@pytest.mark.parametrize(
    ("called", "caught", "handled", "is_caught"),
    [
        ("_inner", "ValueError", "raise TypeError('It is no text. Pass one.') from error", True),
        ("_inner", "(KeyError, Exception)", "return None", True),
        ("_inner", "KeyError", "return None", False),
        ("_inner", "ValueError", "raise", False),
        ("_inner", "ValueError", "raise error", False),
        ("inner", "ValueError", "return None", True),
        ("for_users", "ValueError", "return None", False),
    ],
)
def test_an_error_is_caught_if_each_call_catches_it(
    tmp_path: Path, called: str, caught: str, handled: str, is_caught: bool
) -> None:
    source = CALLED.format(called=called) + CALLER.format(called=called, caught=caught, handled=handled)
    assert read(tmp_path, source, public=("for_users",))["no text at all"].is_caught is is_caught


def test_an_error_is_followed_through_functions_and_files(tmp_path: Path) -> None:
    read(tmp_path, CALLED.format(called="_inner") + "\ndef between(text):\n    return _inner(text)\n")
    source = CALLER.format(called="between", caught="ValueError", handled="return None")
    assert read(tmp_path, source, name="two.py")["no text at all"].is_caught
    assert not read(tmp_path, "between(1)\n", name="three.py")["no text at all"].is_caught
    assert not read(tmp_path, "use = [between]\n", name="three.py")["no text at all"].is_caught
    assert read(tmp_path, "def between(): ...\nbetween()\n", name="three.py")["no text at all"].is_caught


def test_an_error_in_a_handler_or_of_a_generator_is_not_caught(tmp_path: Path) -> None:
    source = """
    def _give():
        raise ValueError("no text at all")
        yield

    try:
        give = _give()
    except ValueError:
        raise ValueError("no more texts")
    """
    found = read(tmp_path, source)
    assert not found["no text at all"].is_caught and not found["no more texts"].is_caught


def test_an_entry_says_the_remedy_once_and_that_an_error_is_caught(tmp_path: Path) -> None:
    found = read(
        tmp_path, CALLED.format(called="_inner") + CALLER.format(called="_inner", caught="ValueError", handled="...")
    )
    assert ": Caught: it is the reason that another message gives." in list(entry(list(found.values())))
    found = read(tmp_path, "raise ValueError(f'They differ. Mend what is said below.\\n{report}')\n")
    lines = list(entry(list(found.values())))
    assert lines[0] == r"**ValueError**: They differ. \{report\}" and ": Remedy: Mend what is said below." in lines
    found = read(tmp_path, "raise ValueError(f'{error} It is left out.')\n")
    lines = list(entry(list(found.values())))
    assert lines[0] == r"**ValueError**: \{error\} It is left out." and not any("Remedy" in line for line in lines)


@pytest.mark.parametrize(
    ("doc", "conditions"),
    [
        ("Raise `ValueError` if it is empty.", {"ValueError": "If it is empty."}),
        (
            "Raise ValueError unless it is\none of `ERAS`. If it is new, keep it.",
            {"ValueError": "Unless it is one of `ERAS`."},
        ),
        ("Return it, or raise `A.KeyError` where it is not; the rest stays.", {"KeyError": "Where it is not."}),
        (
            "Raise `TypeError` unless it is an int, and `ValueError` if it is small.",
            {"TypeError": "Unless it is an int.", "ValueError": "If it is small."},
        ),
        (
            "Raises `TypeError` or `ValueError` if it is none.",
            {"TypeError": "If it is none.", "ValueError": "If it is none."},
        ),
        ("Raise `TypeError` with the table.", {}),
        ("Return `ValueError` if it is empty.", {}),
    ],
)
def test_conditions_are_read_from_sentences(doc: str, conditions: dict[str, str]) -> None:
    assert raised_by_sentence(doc) == conditions


def test_the_cause_is_what_is_said_nearest_by_of_the_class_or_a_base_of_it(tmp_path: Path) -> None:
    source = """
    class SizeError(ValueError):
        pass

    class Box:
        '''A box.

        Raises:
            ValueError: If it cannot be made.
        '''

        def fill(self, size):
            '''Raise `ValueError` if the size is wrong, `TypeError` if it is none.'''
            raise SizeError("It is too small. Pass more.")

        def empty(self):
            raise ValueError("It is empty. Fill it.")

        def weigh(self):
            raise KeyError("It is too heavy. Take less.")
    """
    found = [one.cause for one in read(tmp_path, source).values()]
    assert found == ["If the size is wrong.", "If it cannot be made.", ""]
