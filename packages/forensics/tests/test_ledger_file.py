from __future__ import annotations

import json
import pickle
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ledger_files import HEADER, lines_of, write

from camshaft.callbacks.arguments import InvalidArgumentError
from camshaft.forensics.ledger.ledger_file import (
    LedgerError,
    LedgerFile,
    find_ledger,
    json_of,
    previous_ledger_of,
    read_ledger,
)
from camshaft.hooks_core.support.remote_files import join, local_copy, remove


def bytes_at(path: Path | str) -> bytes:
    with local_copy(str(path)) as file:
        return file.read_bytes()


def test_lines_are_json_and_are_read_back(tmp_path: Path) -> None:
    path = write(tmp_path / "below" / "ledger.jsonl", lines_of(5))
    read = read_ledger(path)
    assert read.header.items() >= HEADER.items() and read.header["ledger"] == 1
    assert [line["step"] for line in read.lines] == [1, 2, 3, 4, 5]
    assert all(len(json.loads(line)["chain"]) == 16 for line in path.read_text().splitlines())


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_no_byte_can_be_changed_unnoticed(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = write(tmp_path_factory.mktemp("damaged") / "ledger.jsonl", lines_of(3))
    content = bytearray(path.read_bytes())
    place = data.draw(st.integers(0, len(content) - 2))
    content[place] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content)
    with pytest.raises(LedgerError, match=r"must be (whole|a file that RunLedger wrote)"):
        read_ledger(path)


def test_lines_that_are_left_out_or_moved_are_noticed(tmp_path: Path) -> None:
    path = write(tmp_path / "ledger.jsonl", lines_of(4))
    header, *lines = path.read_bytes().splitlines(keepends=True)
    for others in (lines[1:], [lines[0], *lines[2:]], [lines[1], lines[0], *lines[2:]]):
        path.write_bytes(b"".join([header, *others]))
        with pytest.raises(LedgerError, match=r"got 'another line [234]'"):
            read_ledger(path)


@pytest.mark.parametrize("num_bytes", [1, 30, 150])
def test_a_last_line_that_a_kill_left_unfinished_does_not_count(num_bytes: int, tmp_path: Path) -> None:
    path = write(tmp_path / "ledger.jsonl", lines_of(3))
    path.write_bytes(path.read_bytes()[:-num_bytes])
    assert [line["step"] for line in read_ledger(path).lines] == [1, 2]


def test_a_ledger_goes_on_at_a_place_and_later_lines_are_cut(tmp_path: Path) -> None:
    path, lines = tmp_path / "ledger.jsonl", [json_of(line) for line in lines_of(6)]
    file = LedgerFile(path)
    file.begin(HEADER)
    file.append(lines[:2])
    position = file.position
    assert position is not None
    file.append(lines[2:])
    whole = path.read_bytes()
    path.write_bytes(whole[:-9])  # killed while it wrote

    again = LedgerFile(path)
    assert again.resume(position)["seed"] == "0"
    assert [line["step"] for line in read_ledger(path).lines] == [1, 2]
    again.append(lines[2:])
    assert path.read_bytes() == whole


def test_going_on_needs_the_ledger_of_that_run(tmp_path: Path) -> None:
    path = write(tmp_path / "ledger.jsonl", lines_of(4))
    file = LedgerFile(write(tmp_path / "other.jsonl", lines_of(4), seed="1"))
    file.begin(HEADER | {"seed": "2"})
    file.append([json_of(line) for line in lines_of(3)])
    position = file.position
    assert position is not None
    before = path.read_bytes()
    with pytest.raises(LedgerError, match="that of the run which the checkpoint is from"):
        LedgerFile(path).resume(position)
    assert path.read_bytes() == before
    path.write_bytes(b"".join(before.splitlines(keepends=True)[:3]))
    with pytest.raises(LedgerError, match=r"at least 4 lines.* but got 3") as caught:
        LedgerFile(path).resume(position)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    with pytest.raises(FileNotFoundError, match="resume without RunLedger"):
        LedgerFile(tmp_path / "nowhere.jsonl").resume(position)


def test_a_ledger_that_was_there_is_kept(tmp_path: Path) -> None:
    path = write(tmp_path / "ledger.jsonl", lines_of(2))
    before = path.read_bytes()
    write(path, lines_of(1), seed="1")
    assert previous_ledger_of(path).read_bytes() == before and len(read_ledger(path).lines) == 1


def test_a_run_is_found_by_its_folder(tmp_path: Path) -> None:
    path = write(tmp_path / "runs" / "one" / "ledger.jsonl", [])
    assert {find_ledger(run) for run in (path, path.parent, tmp_path)} == {path}
    write(tmp_path / "runs" / "two" / "ledger.jsonl", [])
    for run in (tmp_path, tmp_path / "nothing", tmp_path / "nothing.jsonl"):
        with pytest.raises(FileNotFoundError, match="`run` must be a ledger, or a folder with one"):
            find_ledger(run)


def test_other_files_and_formats_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    for content in ("", "a,b\n1,2\n", "{}\n"):
        path.write_text(content)
        with pytest.raises(LedgerError, match="a file that RunLedger wrote"):
            read_ledger(path)
    write(path, [], ledger=2)
    with pytest.raises(LedgerError, match=re.escape("must be of format 1, but got 2 (int)")):
        read_ledger(path)
    with pytest.raises(InvalidArgumentError, match="or a string with the URL of a store, but got 'https://"):
        LedgerFile("https://host/ledger.jsonl")


def test_a_ledger_in_a_store_is_the_one_on_a_disk(tmp_path: Path) -> None:
    contents = []
    for folder in (str(tmp_path), "memory://ledgers"):
        file = LedgerFile(join(folder, "run"))
        write(file.path, lines_of(3), seed="1")
        file.begin(HEADER)
        file.append([json_of(line) for line in lines_of(4)[:2]])
        file.sync()
        position = file.position
        assert position is not None
        file.append([json_of(line) for line in lines_of(4)[2:]])
        file.sync()
        file.close()
        again = LedgerFile(find_ledger(folder))
        again.resume(position)
        again.append(['{"end":2}'])
        again.sync()
        again.close()
        contents.append([bytes_at(path) for path in (file.path, previous_ledger_of(file.path), again.path)])
        with pytest.raises(FileNotFoundError, match="resume without RunLedger"):
            LedgerFile(join(folder, "nowhere.jsonl")).resume(position)
        with pytest.raises(FileNotFoundError, match="`run` must be a ledger, or a folder with one"):
            find_ledger(join(folder, "nothing"))
    assert contents[0] == contents[1]
    assert [line.get("step") for line in read_ledger("memory://ledgers/run/ledger.jsonl").lines] == [1, 2, None]
    remove("memory://ledgers")
