"""What devices can do, where it is told by their type or by torch."""

from __future__ import annotations

from typing import Any

import pytest

from camshaft.hooks_core.support.devices import copies_asynchronously, make_current, name_of_device, widest_float
from camshaft.hooks_core.support.transfer import move_to_device

torch: Any = pytest.importorskip("torch", reason="needs devices")


@pytest.mark.parametrize(
    ("kind", "asynchronous"), [("cpu", False), ("mps", False), ("cuda", True), ("xpu", True), ("hpu", True)]
)
def test_batches_are_copied_asynchronously_where_that_is_safe(kind: str, asynchronous: bool) -> None:
    class Noting(torch.Tensor):  # type: ignore[misc]
        def to(self, device: Any, non_blocking: bool = False) -> Any:
            return str(device), non_blocking

    assert copies_asynchronously(torch.device(kind)) == asynchronous
    batch = {"x": torch.ones(2).as_subclass(Noting)}
    assert move_to_device(batch, torch.device(kind)) == {"x": (kind, asynchronous)}


def test_the_widest_type_is_that_in_which_the_device_adds(monkeypatch: pytest.MonkeyPatch) -> None:
    assert widest_float(torch.device("cpu")) == torch.float64

    def refuse(*_: Any, **options: Any) -> Any:
        raise TypeError("Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64.")

    monkeypatch.setattr(torch, "zeros", refuse)
    widest_float.cache_clear()
    assert widest_float(torch.device("cpu")) == torch.float32
    widest_float.cache_clear()


def test_a_device_without_a_name_or_an_index_stays_as_it_is() -> None:
    assert name_of_device(torch.device("cpu")) == "cpu"
    assert name_of_device(torch.device("meta")) == "meta"
    for device in ("cpu", "meta", "cuda"):
        make_current(torch.device(device))
