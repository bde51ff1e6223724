from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import safetensors
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from camshaft.strategies import CheckpointError, consolidate_checkpoint, read_checkpoint, write_checkpoint
from camshaft.strategies.__main__ import main
from camshaft.strategies.checkpoints.safetensors_files import export_safetensors, import_safetensors, read_safetensors


def test_the_weights_of_a_checkpoint_are_read_by_other_tools_and_back(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).to(torch.bfloat16)
    write_checkpoint({"state_dict": model.state_dict(), "epoch": 3}, tmp_path / "model.ckpt")
    export_safetensors(tmp_path / "model.ckpt", tmp_path / "deep" / "model.safetensors")
    loaded = load_file(tmp_path / "deep" / "model.safetensors")
    assert loaded.keys() == model.state_dict().keys()
    assert all(torch.equal(loaded[name], value) for name, value in model.state_dict().items())
    with safetensors.safe_open(tmp_path / "deep" / "model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}
    assert os.listdir(tmp_path / "deep") == ["model.safetensors"]
    import_safetensors(tmp_path / "deep" / "model.safetensors", tmp_path / "back.ckpt")
    back = read_checkpoint(tmp_path / "back.ckpt")
    assert list(back) == ["state_dict"]
    other = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).to(torch.bfloat16)
    other.load_state_dict(back["state_dict"])
    assert torch.equal(other[0].weight, model[0].weight)


def test_split_weights_are_read_by_their_index(tmp_path: Path) -> None:
    weights = {name: torch.randn(size) for name, size in (("a", 4), ("b", 6), ("c", 20), ("d.bias", 1), ("d", 2))}
    write_checkpoint({"state_dict": weights}, tmp_path / "all.ckpt")
    folder = tmp_path / "hub"
    words = ["consolidate", str(tmp_path / "all.ckpt"), str(folder / "model.safetensors"), "--max-shard-bytes", "48"]
    assert main(words) == 0
    names = [f"model-{idx:05}-of-00003.safetensors" for idx in (1, 2, 3)]
    assert sorted(os.listdir(folder)) == [*names, "model.safetensors.index.json"]
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    assert index["metadata"] == {"total_size": 33 * 4}
    assert index["weight_map"] == {"a": names[0], "b": names[0], "c": names[1], "d.bias": names[2], "d": names[2]}
    assert main(["consolidate", str(folder / "model.safetensors.index.json"), str(tmp_path / "back.ckpt")]) == 0
    back = read_checkpoint(tmp_path / "back.ckpt")["state_dict"]
    assert list(back) == list(weights) and all(torch.equal(back[name], weights[name]) for name in weights)

    (folder / "model.safetensors").touch()
    with pytest.raises(FileExistsError, match=r"`path` must be free where the weights are split, since readers take"):
        export_safetensors(tmp_path / "all.ckpt", folder / "model.safetensors", 40)
    save_file({"a": weights["a"]}, folder / names[0])
    with pytest.raises(CheckpointError, match="an index of the files beside it, which lack 'b'"):
        read_safetensors(folder / "model.safetensors.index.json")
    (folder / names[1]).unlink()
    with pytest.raises(FileNotFoundError, match=names[1]):
        read_safetensors(folder / "model.safetensors.index.json")
    (folder / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(CheckpointError, match="must be an index of safetensors files"):
        read_safetensors(folder / "model.safetensors.index.json")


@pytest.mark.parametrize("max_shard_bytes", [None, 60])
def test_hugging_faces_library_loads_what_was_written(tmp_path: Path, max_shard_bytes: int | None) -> None:
    hub = pytest.importorskip("huggingface_hub")
    model, other = (nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 3)) for _ in range(2))
    weights = {"head.weight": torch.ones(9), **{f"model.{name}": value for name, value in model.state_dict().items()}}
    write_checkpoint({"state_dict": weights}, tmp_path / "all.ckpt")
    export_safetensors(tmp_path / "all.ckpt", tmp_path / "hub/model.safetensors", max_shard_bytes, prefix="model.")
    hub.load_torch_model(other, tmp_path / "hub")
    assert all(torch.equal(one, two) for one, two in zip(model.parameters(), other.parameters(), strict=True))


def test_a_size_or_prefix_that_has_no_meaning_is_refused(tmp_path: Path) -> None:
    write_checkpoint({"state_dict": {"a": torch.ones(1)}}, tmp_path / "all.ckpt")
    source, target = tmp_path / "all.ckpt", tmp_path / "a.safetensors"
    with pytest.raises(ValueError, match="`max_shard_bytes` must be a positive int, but got 0"):
        consolidate_checkpoint(source, target, 0)
    with pytest.raises(TypeError, match="`max_shard_bytes` must be a positive int, but got '5GB'"):
        consolidate_checkpoint(source, target, "5GB")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"`prefix` must be that of a weight in .*, such as 'a', but got 'model\.'"):
        consolidate_checkpoint(source, target, prefix="model.")
    for name, value in (("max_shard_bytes", 9), ("prefix", "a")):
        with pytest.raises(ValueError, match=f"`{name}` must be left out where the target is no safetensors file"):
            consolidate_checkpoint(source, tmp_path / "a.ckpt", **{name: value})  # type: ignore[arg-type]


def test_tied_and_overlapping_weights_are_written_under_each_name(tmp_path: Path) -> None:
    weights = torch.arange(12.0).reshape(3, 4)
    state = {"embedding": weights, "head": weights, "row": weights[1], "turned": weights.t(), "none": weights[:0]}
    write_checkpoint({"state_dict": state}, tmp_path / "a.ckpt")
    export_safetensors(tmp_path / "a.ckpt", tmp_path / "a.safetensors")
    loaded = read_safetensors(tmp_path / "a.safetensors")
    assert {name: value.tolist() for name, value in loaded.items()} == {
        name: value.tolist() for name, value in state.items()
    }


@pytest.mark.parametrize(
    ("checkpoint", "message"),
    [
        ({"epoch": 1}, r"must be a checkpoint with a 'state_dict', not one with \['epoch'\]"),
        ({"state_dict": {"a": torch.ones(1), "b._extra_state": 3}}, "these are none: b._extra_state"),
        ({"state_dict": {"a": torch.ones(1), "b._extra_state": {1}}}, "these are none: b._extra_state"),
        ({"state_dict": {"a": torch.ones(1, dtype=torch.complex128)}}, "weights that can be written as safetensors"),
        ({"state_dict": {"a": torch.eye(2).to_sparse()}}, "weights that can be written as safetensors"),
    ],
)
def test_what_is_no_weights_is_refused(tmp_path: Path, checkpoint: dict[str, object], message: str) -> None:
    write_checkpoint(checkpoint, tmp_path / "a.ckpt")
    with pytest.raises(ValueError, match=message):
        export_safetensors(tmp_path / "a.ckpt", tmp_path / "a.safetensors")
    assert os.listdir(tmp_path) == ["a.ckpt"]


def test_a_broken_file_is_told_from_a_missing_one(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="`path` must be an existing safetensors file"):
        read_safetensors(tmp_path / "absent.safetensors")
    save_file({"a": torch.ones(100)}, tmp_path / "a.safetensors")
    whole = (tmp_path / "a.safetensors").read_bytes()
    for content in (b"", whole[:40], whole[:-1], b"\xff" * 100):
        (tmp_path / "a.safetensors").write_bytes(content)
        with pytest.raises(CheckpointError, match="`path` must be a whole safetensors file"):
            read_safetensors(tmp_path / "a.safetensors")


def test_without_the_package_the_error_says_what_to_install() -> None:
    script = (
        "import sys; sys.modules['safetensors'] = None\n"
        "from camshaft.strategies.checkpoints.safetensors_files import read_safetensors\n"
        "read_safetensors('x.safetensors')"
    )
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert "`safetensors` must be installed" in answer.stderr
    assert "pip install safetensors" in answer.stderr


@pytest.fixture
def file(tmp_path: Path) -> Path:
    write_checkpoint({"state_dict": {"weight": torch.arange(4.0)}, "epoch": 3}, tmp_path / "a.ckpt")
    return tmp_path / "a.ckpt"


def test_a_file_becomes_a_file_with_the_same(file: Path, tmp_path: Path) -> None:
    assert main(["consolidate", str(file), str(tmp_path / "new" / "b.ckpt")]) == 0
    copied = read_checkpoint(tmp_path / "new" / "b.ckpt")
    assert copied["epoch"] == 3
    assert copied["state_dict"]["weight"].tolist() == [0, 1, 2, 3]


def test_weights_go_to_safetensors_and_back(file: Path, tmp_path: Path) -> None:
    assert main(["consolidate", str(file), str(tmp_path / "a.safetensors")]) == 0
    assert {name: value.tolist() for name, value in read_safetensors(tmp_path / "a.safetensors").items()} == {
        "weight": [0, 1, 2, 3]
    }
    assert main(["consolidate", str(tmp_path / "a.safetensors"), str(tmp_path / "b.ckpt")]) == 0
    assert list(read_checkpoint(tmp_path / "b.ckpt")) == ["state_dict"]


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        ("absent.ckpt", "b.ckpt", "`path` must be an existing checkpoint"),
        ("broken.ckpt", "b.ckpt", "which cannot be read"),
        ("empty", "b.ckpt", "which has no plain.ckpt"),
        ("broken.ckpt", "b.safetensors", "which cannot be read"),
        ("a.ckpt", "empty", "the target must be a file"),
        ("a.ckpt", "broken.ckpt/b.ckpt", "exists"),
        ("a.safetensors", "b.safetensors", "must be a checkpoint file where the source is a safetensors file"),
        ("absent.safetensors", "b.ckpt", "must be an existing safetensors file"),
    ],
)
def test_what_cannot_be_done_ends_with_status_two_and_one_line(
    source: str, target: str, message: str, file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broken.ckpt").write_bytes(file.read_bytes()[:200])
    (tmp_path / "empty").mkdir()
    before = sorted(os.listdir(tmp_path))
    assert main(["consolidate", str(tmp_path / source), str(tmp_path / target)]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("error: ")
    assert printed.err.count("\n") == 1
    assert message in printed.err
    assert sorted(os.listdir(tmp_path)) == before


def test_the_command_line_explains_itself_and_prints_no_traceback(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "camshaft.strategies", "consolidate"]
    printed = subprocess.run([*command, "--help"], capture_output=True, text=True, check=True).stdout
    assert "usage: python -m camshaft.strategies consolidate" in printed
    assert "consolidate run/last.ckpt model.safetensors" in printed
    assert max(map(len, printed.splitlines())) <= 110
    failed = subprocess.run([*command, "absent", "b.ckpt"], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert failed.returncode == 2
    assert "Traceback" not in failed.stderr
    assert failed.stderr.startswith("error: `path` must be an existing checkpoint")
