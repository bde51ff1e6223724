"""The adapters of the examples keep the promises of the strategy protocol, in one process and in two."""

from __future__ import annotations

from pathlib import Path

import pytest
from adapters import conformance_worker
from adapters.conformance_worker import TOLERANCES
from adapters.strategies import BUILDERS
from launching import run_ranks

from camshaft.strategies import conformance


@pytest.mark.parametrize("library", BUILDERS)
@pytest.mark.parametrize("bf16", TOLERANCES)
def test_an_adapter_of_one_process_passes(library: str, bf16: bool, tmp_path: Path) -> None:
    conformance.run(lambda: BUILDERS[library](bf16=bf16), tmp_path, rtol=TOLERANCES[bf16]).raise_if_failed()


@pytest.mark.parametrize("library", ["accelerate", "fabric"])
def test_an_adapter_of_two_processes_passes(library: str, tmp_path: Path) -> None:
    script = Path(conformance_worker.__file__)
    run_ranks(script, 2, args=[library, tmp_path], env={"CUDA_VISIBLE_DEVICES": ""}).succeeded()
    for bf16 in TOLERANCES:
        for rank in (0, 1):
            passed, _, table = (tmp_path / f"{bf16}.{rank}.txt").read_text().partition("\n")
            assert passed == "True", f"bf16={bf16}\n{table}"


@pytest.mark.gpu(kind="cuda")
@pytest.mark.parametrize("library", BUILDERS)
def test_an_adapter_on_a_gpu_passes(library: str, tmp_path: Path) -> None:
    conformance.run(lambda: BUILDERS[library](device="cuda"), tmp_path, rtol=1e-3).raise_if_failed()
